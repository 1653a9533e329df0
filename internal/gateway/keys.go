package gateway

import (
	"fmt"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
)

// suggestionContext binds sealed suggestions to their use.
const suggestionContext = "suggestion"

// keys are derived from the operator's secret, one for each use.
type keys struct {
	prints *normalize.Fingerprinter
	sealer *secret.Sealer
	// id names the fingerprint key in Redis without telling anything of it.
	id string
}

func deriveKeys(master, previous []byte) (keys, error) {
	fingerprint, err := secret.Derive(master, "fingerprint")
	if err != nil {
		return keys{}, err
	}
	id, err := secret.Derive(master, "key-id")
	if err != nil {
		return keys{}, err
	}
	row, err := secret.Derive(master, "row")
	if err != nil {
		return keys{}, err
	}
	rows, former := [][]byte{row}, [][]byte(nil)
	if previous != nil {
		print, err := secret.Derive(previous, "fingerprint")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		former = append(former, print)
		old, err := secret.Derive(previous, "row")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		rows = append(rows, old)
	}
	sealer, err := secret.NewSealer(rows...)
	if err != nil {
		return keys{}, err
	}
	return keys{prints: normalize.NewFingerprinter(fingerprint, former...), sealer: sealer, id: fmt.Sprintf("%x", id[:3])}, nil
}
