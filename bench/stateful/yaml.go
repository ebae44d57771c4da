package stateful

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.dev/sluice/bench/profiles"
)

// Load reads a profile from a file.
func Load(path string) (*Profile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return Parse(path, text)
}

// Named reads a profile from bench/profiles.
func Named(name string) (*Profile, error) {
	file := name + ".yaml"
	text, err := profiles.Files.ReadFile(file)
	if err != nil {
		known, _ := profiles.Files.ReadDir(".") // cannot fail: it is embedded
		var names []string
		for _, f := range known {
			names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
		}
		return nil, fmt.Errorf("there is no profile %q: name one of %s, or a file (./%s)", name,
			strings.Join(names, ", "), file)
	}
	return Parse("bench/profiles/"+file, text)
}

// profileFile is a profile as a file has it.
type profileFile struct {
	Name        string
	Duration    time.Duration
	CPS         float64 `yaml:"connectionsPerSecond"`
	Concurrency int
	Clients     struct{ Addresses, Ports string }
	Servers     struct{ Addresses string }
	VIP         netip.Addr
	Ramp        []RampStep
	TCP         TCP
	Templates   []templateFile
}

type templateFile struct {
	Name     string
	Protocol Protocol
	Port     uint16
	Share    float64
	Timeout  time.Duration
	Retries  int
	Close    Side
	Steps    []stepFile
}

// stepFile is a step, or steps that are repeated.
type stepFile struct {
	From   *Side
	Size   *int
	Text   *string
	Hex    *string
	Count  int
	After  time.Duration
	Repeat int
	Steps  []stepFile
}

// Parse reads a profile from text. Its errors name the file, and the line or the template.
func Parse(path string, text []byte) (*Profile, error) {
	var f profileFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(&f)
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty: see bench/profiles for profiles")
	}
	var p *Profile
	if err == nil {
		p, err = f.profile()
	}
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func (f *profileFile) profile() (p *Profile, err error) {
	p = &Profile{Name: f.Name, Duration: f.Duration, CPS: f.CPS, Concurrency: f.Concurrency, VIP: f.VIP, Ramp: f.Ramp,
		TCP: f.TCP}
	if f.Clients.Ports == "" {
		return nil, errors.New("clients have no ports: add ports: FIRST-LAST")
	}
	if p.Clients, err = ParsePool(f.Clients.Addresses, f.Clients.Ports); err != nil {
		return nil, fmt.Errorf("clients: %w", err)
	}
	if p.Servers, err = ParsePool(f.Servers.Addresses, ""); err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	for _, t := range f.Templates {
		steps, err := stepsOf(t.Steps)
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", t.Name, err)
		}
		p.Templates = append(p.Templates, Template{Name: t.Name, Protocol: t.Protocol, Port: t.Port, Share: t.Share,
			Timeout: t.Timeout, Retries: t.Retries, Close: t.Close, Steps: steps})
	}
	return p, nil
}

// stepsOf writes repetitions out.
func stepsOf(list []stepFile) (steps []Step, err error) {
	for i := range list {
		f := &list[i]
		once := f.Steps
		if once == nil {
			s, err := f.step()
			if err != nil {
				return nil, fmt.Errorf("entry %d of steps: %w", i+1, err)
			}
			steps = append(steps, s)
			continue
		}
		repeated, err := stepsOf(once)
		if err == nil && (f.Repeat < 1 || len(steps)+f.Repeat*len(repeated) > MaxSteps) {
			err = fmt.Errorf("%d times %d steps: at least once, and at most %d steps in all, are possible", f.Repeat,
				len(repeated), MaxSteps)
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d of steps: %w", i+1, err)
		}
		for range f.Repeat {
			steps = append(steps, repeated...)
		}
	}
	return steps, nil
}

func (f *stepFile) step() (s Step, err error) {
	ways := 0
	s = Step{Count: f.Count, After: f.After}
	if f.Size != nil {
		ways++
		s.Size = *f.Size
	}
	if f.Text != nil {
		ways++
		s.Bytes = []byte(*f.Text)
	}
	if f.Hex != nil {
		ways++
		if s.Bytes, err = hex.DecodeString(strings.Join(strings.Fields(*f.Hex), "")); err != nil {
			return s, fmt.Errorf("hex: %w: write two digits per byte; blanks are ignored", err)
		}
	}
	if f.From == nil || ways != 1 {
		return s, errors.New("a step needs from: client or server, and one of size, text and hex")
	}
	s.From = *f.From
	if f.Size == nil {
		s.Size = len(s.Bytes)
	}
	return s, nil
}
