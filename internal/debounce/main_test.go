package debounce

import (
	"testing"

	"validator-gw/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
