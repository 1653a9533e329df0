package soak

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// asGateway makes the test binary stand in for the program that StartProcess starts.
const asGateway = "SOAK_TEST_GATEWAY"

func TestMain(m *testing.M) {
	switch os.Getenv(asGateway) {
	case "":
		goleak.VerifyTestMain(m)
	case "listens", "stops badly":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM) //nolint:forbidigo // here the binary is a program
		fmt.Println("validator-gw v1 (serve)\n  store     SQLite")
		fmt.Println("  listening http://127.0.0.1:4711 (metrics http://127.0.0.1:4712/metrics)")
		fmt.Fprintln(os.Stderr, "a line for the log")
		<-stop
		if os.Getenv(asGateway) == "stops badly" {
			os.Exit(1)
		}
	case "fails":
		fmt.Fprintln(os.Stderr, "no database")
		os.Exit(1)
	}
}
