package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestDriveCountsFromTheIntendedTime: a gateway that answers nothing for a second does not hold later requests back, and
// each wait counts from when the request was meant to be sent.
func TestDriveCountsFromTheIntendedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asks []Ask
		for i := range 20 {
			asks = append(asks, Ask{At: time.Duration(i) * 100 * time.Millisecond, Address: fmt.Sprint(i)})
		}
		began := time.Now()
		stall := began.Add(time.Second)
		answers, err := drive(t.Context(), asks, began, func(_ context.Context, a *Answer) {
			time.Sleep(time.Until(stall))
			a.Code = 200
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			want := max(time.Second-asks[i].At, 0)
			if a.Ask != asks[i] || a.Sent != asks[i].At || a.Took() != want || a.Code != 200 {
				t.Errorf("request %d: sent at %v, took %v, code %d; want %v, %v, 200", i, a.Sent, a.Took(), a.Code, asks[i].At, want)
			}
		}
	})
}

// TestDriveThatIsLateSaysSo: a plan whose time has come all at once is sent at once, and the lateness counts as waiting.
func TestDriveThatIsLateSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers, err := drive(t.Context(), []Ask{{At: 0}, {At: 3 * time.Second}}, time.Now().Add(-2*time.Second),
			func(context.Context, *Answer) { time.Sleep(10 * time.Millisecond) })
		if err != nil {
			t.Fatal(err)
		}
		if got := []time.Duration{answers[0].Took(), answers[1].Took()}; !slices.Equal(got, []time.Duration{2010 * time.Millisecond, 10 * time.Millisecond}) {
			t.Errorf("took %v", got)
		}
	})
}

func TestDriveIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers, err := drive(t.Context(), make([]Ask, maxInFlight+7), time.Now(), func(ctx context.Context, a *Answer) {
			<-ctx.Done() // the time of one request
			a.Err = ctx.Err().Error()
		})
		if err != nil {
			t.Fatal(err)
		}
		unsent := 0
		for _, a := range answers {
			if a.Took() > maxWait {
				t.Fatalf("took %v, at most %v", a.Took(), maxWait)
			}
			if a.Got == 0 && a.Err != "" {
				unsent++
			}
		}
		if unsent != 7 {
			t.Errorf("%d were not sent, want 7", unsent)
		}
	})
}

func TestDriveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("told to stop")
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		_, err := drive(ctx, []Ask{{At: 0}, {At: time.Hour}}, began, func(ctx context.Context, _ *Answer) { <-ctx.Done() })
		if !errors.Is(err, why) || time.Since(began) != time.Second {
			t.Errorf("ended after %v with %v", time.Since(began), err)
		}
	})
}
