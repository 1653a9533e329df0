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
	// answers is for the hashes of Idempotency-Keys. Under a new secret the stored answers are unknown.
	answers []byte
	// sessions is for the hashes of typing sessions.
	sessions []byte
	// inputs is for the hashes that name a list of addresses, and tell two apart.
	inputs []byte
	// id names the fingerprint key in Redis without telling anything of it; formerIDs those of the previous secret.
	id        string
	formerIDs []string
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
	answers, err := secret.Derive(master, "idempotency")
	if err != nil {
		return keys{}, err
	}
	sessions, err := secret.Derive(master, "sessions")
	if err != nil {
		return keys{}, err
	}
	inputs, err := secret.Derive(master, "inputs")
	if err != nil {
		return keys{}, err
	}
	row, err := secret.Derive(master, "row")
	if err != nil {
		return keys{}, err
	}
	rows, former, formerIDs := [][]byte{row}, [][]byte(nil), []string(nil)
	if previous != nil {
		formerPrint, err := secret.Derive(previous, "fingerprint")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		former = append(former, formerPrint)
		old, err := secret.Derive(previous, "row")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		rows = append(rows, old)
		oldID, err := secret.Derive(previous, "key-id")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		formerIDs = append(formerIDs, keyID(oldID))
	}
	sealer, err := secret.NewSealer(rows...)
	if err != nil {
		return keys{}, err
	}
	return keys{prints: normalize.NewFingerprinter(fingerprint, former...), sealer: sealer, answers: answers, sessions: sessions, inputs: inputs,
		id: keyID(id), formerIDs: formerIDs}, nil
}

func keyID(derived []byte) string { return fmt.Sprintf("%x", derived[:3]) }
