package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

const good = "0123456789abcdef0123456789abcdef"

// gateway returns a configuration whose stateDir is empty.
func gateway(t *testing.T, change func(c *config.Configuration, dir string)) *config.Configuration {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.StateDir = dir
	if change != nil {
		change(c, dir)
	}
	return c
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// TestDefaultIsSecret: an attacker knows the program, and so the key of the empty seed. By it he
// chooses 22 source ports that lead to one backend of eight. With the default configuration they
// lead to all of them.
func TestDefaultIsSecret(t *testing.T) {
	names := make([]string, 8)
	for i := range names {
		names[i] = fmt.Sprintf("10.0.1.%d:8080/TCP", i)
	}
	choose := func(key [2]uint64, port int) int {
		s := &services.Snapshot{SelectKey: key}
		table := maglev.Table(names, nil, key, maglev.Size(len(names)))
		hash := s.SelectHash(&header.Tuple{Src: header.Addr{15: 7}, Dst: header.Addr{15: 10}, SrcPort: uint16(port),
			DstPort: 80, Proto: header.ProtoTCP})
		return int(table[(hash>>32)*uint64(len(table))>>32])
	}
	var ports []int
	for port := 1024; len(ports) < 22; port++ {
		if choose(maglev.Key(""), port) == 3 {
			ports = append(ports, port)
		}
	}
	c := gateway(t, nil)
	s, err := Take(c)
	if err != nil {
		t.Fatal(err)
	}
	var reached [8]int
	for _, port := range ports {
		reached[choose(s.Key, port)]++
	}
	// Each gets 2.75 of 22 on average: 14 or more to one of eight come once in 10^7 seeds.
	if most := slices.Max(reached[:]); most >= 14 {
		t.Errorf("%d of 22 chosen connections reach one backend of eight: %v", most, reached)
	}
}

// TestFind: where the seed comes from, and what is said about it.
func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, c *config.Configuration, dir string)
		origin Origin
		level  string
		want   string
	}{
		{"a Secret", func(t *testing.T, c *config.Configuration, dir string) {
			c.Maglev.SeedFile = filepath.Join(dir, "seed")
			write(t, c.Maglev.SeedFile, good+"\n", 0o400)
		}, File, "ok", "seed, fingerprint " + maglev.Fingerprint(good)},
		{"a file that other users may read", func(t *testing.T, c *config.Configuration, dir string) {
			c.Maglev.SeedFile = filepath.Join(dir, "seed")
			write(t, c.Maglev.SeedFile, good, 0o444)
		}, File, "warn", "other users may read"},
		{"a short Secret", func(t *testing.T, c *config.Configuration, dir string) {
			c.Maglev.SeedFile = filepath.Join(dir, "seed")
			write(t, c.Maglev.SeedFile, "guess", 0o400)
		}, File, "warn", "may be found by trying"},
		{"an empty Secret", func(t *testing.T, c *config.Configuration, dir string) {
			c.Maglev.SeedFile = filepath.Join(dir, "seed")
			write(t, c.Maglev.SeedFile, "\n", 0o400)
		}, Drawn, "warn", "does not exist or is empty"},
		{"no Secret yet", func(_ *testing.T, c *config.Configuration, dir string) {
			c.Maglev.SeedFile = filepath.Join(dir, "seed")
		}, Drawn, "warn", "does not exist or is empty"},
		{"one gateway alone", func(*testing.T, *config.Configuration, string) {}, Drawn, "ok", "another gateway"},
		{"a gateway of a cluster", func(_ *testing.T, c *config.Configuration, _ string) {
			c.Kubernetes.Enabled = true
		}, Drawn, "warn", "a Secret that all gateways mount"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := gateway(t, func(c *config.Configuration, dir string) { tt.change(t, c, dir) })
			s, err := Take(c)
			if err != nil {
				t.Fatal(err)
			}
			v := s.View()
			if s.Origin != tt.origin || v.Level != tt.level || !strings.Contains(v.Detail, tt.want) {
				t.Errorf("%s, %s: %s\nwant %s, %s: ...%s...", s.Origin, v.Level, v.Detail, tt.origin, tt.level, tt.want)
			}
			for _, secret := range []string{good, "guess"} {
				if strings.Contains(v.Detail, secret) {
					t.Errorf("the seed is in the condition: %s", v.Detail)
				}
			}
		})
	}
}

// TestDrawnStays: the next process has the seed of the one before, another gateway has another, and
// nobody else may read it.
func TestDrawnStays(t *testing.T) {
	c := gateway(t, nil)
	if _, err := Find(c); !errors.Is(err, ErrNone) {
		t.Fatalf("before one was drawn: %v", err)
	}
	first, err := Take(c)
	if err != nil {
		t.Fatal(err)
	}
	if next, err := Take(c); err != nil || next != first {
		t.Errorf("the next process has %+v, %v, want %+v", next, err, first)
	}
	if info, err := os.Stat(filepath.Join(c.StateDir, Name)); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info.Mode(), err)
	}
	c = gateway(t, nil)
	if other, err := Take(c); err != nil || other.Key == first.Key || other.Fingerprint == first.Fingerprint {
		t.Errorf("two gateways have drawn one seed: %+v, %v", other, err)
	}
}

// TestRefused: a file that others may write is not used, nor one whose content is not known.
func TestRefused(t *testing.T) {
	c := gateway(t, func(c *config.Configuration, dir string) { c.Maglev.SeedFile = filepath.Join(dir, "seed") })
	write(t, c.Maglev.SeedFile, good, 0o600)
	if err := os.Chmod(c.Maglev.SeedFile, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(c); err == nil || !strings.Contains(err.Error(), "maglev.seedFile") {
		t.Errorf("a file that others may write: %v", err)
	}
	c = gateway(t, func(_ *config.Configuration, dir string) {
		write(t, filepath.Join(dir, Name), `{"version":2,"seed":"x"}`, 0o600)
	})
	if _, err := Take(c); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a file of another version: %v", err)
	}
}
