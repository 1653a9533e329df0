package fallback_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/secret"
)

func openSQLite(t testing.TB, path string, s *secret.Sealer) *fallback.SQLite {
	t.Helper()
	store, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: s})
	if err != nil {
		t.Fatalf("OpenSQLite = %v, want no error", err)
	}
	return store
}

func TestSQLiteConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, story func(t *testing.T, b conformance.Bed)) {
		path := filepath.Join(t.TempDir(), "data", "gateway.db")
		// The bubble ends only if Close leaves no goroutine, and its clock is exact.
		synctest.Test(t, func(t *testing.T) {
			store := openSQLite(t, path, conformance.Sealer(0))
			t.Cleanup(func() { store.Close() })
			story(t, conformance.Bed{
				Store: store,
				Open: func(t *testing.T, s *secret.Sealer) conformance.Store {
					store.Close()
					store = openSQLite(t, path, s)
					return store
				},
				Advance: func(_ *testing.T, d time.Duration) { time.Sleep(d) },
				Refuse: func(t *testing.T, table string) {
					db, err := sql.Open("sqlite", path)
					if err == nil {
						_, err = db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON `+table+` BEGIN SELECT RAISE(ABORT, 'refused'); END`)
						db.Close()
					}
					if err != nil {
						t.Fatalf("refuse: %v", err)
					}
				},
				Dump: func(t *testing.T) string { return dumpSQLite(t, path) },
			})
		})
	})
}

func dumpSQLite(t *testing.T, path string) string {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatalf("dump: %v", err)
	}
	defer db.Close()
	query := func(q string) (out [][]any) {
		rows, err := db.QueryContext(t.Context(), q)
		if err != nil {
			t.Fatalf("dump: %v", err)
		}
		defer rows.Close()
		columns, _ := rows.Columns()
		for rows.Next() {
			row := make([]any, len(columns))
			for i := range row {
				row[i] = new(any)
			}
			if err := rows.Scan(row...); err != nil {
				t.Fatalf("dump: %v", err)
			}
			out = append(out, row)
		}
		return out
	}
	var out strings.Builder
	for _, table := range query(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1`) {
		name := fmt.Sprint(*table[0].(*any))
		for _, row := range query(`SELECT * FROM ` + name + ` ORDER BY 1`) {
			for _, v := range row {
				switch v := (*v.(*any)).(type) {
				case []byte:
					fmt.Fprintf(&out, "%x ", v)
				default:
					fmt.Fprint(&out, v, " ")
				}
			}
			out.WriteString("\n")
		}
	}
	return out.String()
}

func TestSQLiteRefusesAFolderInUse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	first := openSQLite(t, path, conformance.Sealer(0))
	if _, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: conformance.Sealer(0)}); !errors.Is(err, fallback.ErrInUse) {
		t.Errorf("second OpenSQLite = %v, want ErrInUse", err)
	}
	if err := fallback.MigrateSQLite(t.Context(), path); !errors.Is(err, fallback.ErrInUse) {
		t.Errorf("MigrateSQLite beside an open store = %v, want ErrInUse", err)
	}
	first.Close()
	if err := fallback.MigrateSQLite(t.Context(), path); err != nil {
		t.Errorf("MigrateSQLite after Close = %v, want no error", err)
	}
	openSQLite(t, path, conformance.Sealer(0)).Close()
}

func TestSQLiteRefusesAnotherSecret(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	openSQLite(t, path, conformance.Sealer(0)).Close()
	if _, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: conformance.Sealer(1)}); !errors.Is(err, fallback.ErrWrongSecret) {
		t.Errorf("OpenSQLite with another secret = %v, want ErrWrongSecret", err)
	}
	openSQLite(t, path, conformance.Sealer(1, 0)).Close() // a rotation
	openSQLite(t, path, conformance.Sealer(1)).Close()
	if _, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: conformance.Sealer(0)}); !errors.Is(err, fallback.ErrWrongSecret) {
		t.Errorf("OpenSQLite with the old secret alone = %v, want ErrWrongSecret", err)
	}
}

func TestSQLiteFileIsTheOwnersAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data", "gateway.db")
	s := openSQLite(t, path, conformance.Sealer(0))
	defer s.Close()
	for _, p := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(p)
		if err != nil {
			t.Errorf("Stat: %v", err)
		} else if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("mode of %s = %o, want 600", filepath.Base(p), got)
		}
	}
}

func TestSQLiteOfANewerProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	openSQLite(t, path, conformance.Sealer(0)).Close()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `INSERT INTO validator_gw_schema_version (version_id, is_applied) VALUES (999999, 1)`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: conformance.Sealer(0)})
	if !errors.Is(err, fallback.ErrSchema) {
		t.Errorf("OpenSQLite = %v, want ErrSchema", err)
	}
}

func TestOpenSQLiteRefusesBadConfigs(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, c := range map[string]fallback.SQLiteConfig{
		"no path":        {Sealer: conformance.Sealer(0)},
		"no sealer":      {Path: filepath.Join(folder, "a.db")},
		"negative bound": {Path: filepath.Join(folder, "b.db"), Sealer: conformance.Sealer(0), MaxOpen: -1},
		"a folder":       {Path: folder, Sealer: conformance.Sealer(0)},
	} {
		if s, err := fallback.OpenSQLite(t.Context(), c); err == nil {
			s.Close()
			t.Errorf("%s: OpenSQLite gave no error", name)
		}
	}
}
