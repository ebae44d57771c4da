package stateful

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.dev/sluice/bench/profiles"
)

// Load reads a profile. It returns all errors at once, with file and line.
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

// Parse reads a profile from text; path is for messages.
func Parse(path string, text []byte) (*Profile, error) {
	r := &reader{path: path}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(document.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty: see bench/profiles for profiles", path)
	}
	p := &Profile{}
	r.profile(document.Content[0], p)
	if len(r.errs) == 0 {
		if err := p.Validate(); err != nil {
			r.validated(document.Content[0], p, err)
		}
	}
	return p, errors.Join(r.errs...)
}

// reader turns nodes into a profile and collects errors with their lines.
type reader struct {
	path string
	errs []error
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.path, n.Line, fmt.Sprintf(format, args...)))
}

// validated adds the lines of templates to the errors of Validate.
func (r *reader) validated(root *yaml.Node, p *Profile, err error) {
	for _, line := range strings.Split(err.Error(), "\n") {
		at := root
		for i := range p.Templates {
			if strings.HasPrefix(line, "template "+p.Templates[i].Name+":") {
				at = child(root, "templates").Content[i]
			}
		}
		if at == root {
			if word, _, _ := strings.Cut(line, " "); child(root, strings.TrimRight(word, ":,")) != nil {
				at = child(root, strings.TrimRight(word, ":,"))
			}
		}
		r.fail(at, "%s", line)
	}
}

func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// fields reads a mapping; unknown and repeated fields are errors.
func (r *reader) fields(n *yaml.Node, what string, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be fields, written as name: value", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		read, ok := known[key.Value]
		switch {
		case !ok:
			r.fail(key, "%s has no field %q: remove it, or use one of %s", what, key.Value,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[key.Value]:
			r.fail(key, "%s has the field %q twice: remove one", what, key.Value)
		default:
			read(n.Content[i+1])
		}
		seen[key.Value] = true
	}
}

func (r *reader) list(n *yaml.Node, what string, each func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "%s must be a list, each entry after a dash", what)
		return
	}
	for _, c := range n.Content {
		each(c)
	}
}

// scalar reads one value with parse; like describes the form of the value in errors.
func scalar[T any](r *reader, to *T, like string, parse func(string) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		v, err := parse(n.Value)
		if err != nil || n.Kind != yaml.ScalarNode {
			r.fail(n, "%q is not %s", n.Value, like)
			return
		}
		*to = v
	}
}

func (r *reader) text(to *string) func(*yaml.Node) {
	return scalar(r, to, "a text", func(s string) (string, error) { return s, nil })
}

func (r *reader) number(to *int) func(*yaml.Node) {
	return scalar(r, to, "a whole number, such as 1000", strconv.Atoi)
}

func (r *reader) real(to *float64) func(*yaml.Node) {
	return scalar(r, to, "a number, such as 1000", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func (r *reader) time(to *time.Duration) func(*yaml.Node) {
	return scalar(r, to, "a time, such as 20ms or 5s", time.ParseDuration)
}

func (r *reader) side(to *Side) func(*yaml.Node) {
	return scalar(r, to, "a side: client or server", func(s string) (Side, error) {
		switch s {
		case "client":
			return Client, nil
		case "server":
			return Server, nil
		}
		return 0, errors.New("neither")
	})
}

func (r *reader) profile(n *yaml.Node, p *Profile) {
	r.fields(n, "a profile", map[string]func(*yaml.Node){
		"name": r.text(&p.Name), "duration": r.time(&p.Duration),
		"connectionsPerSecond": r.real(&p.CPS), "concurrency": r.number(&p.Concurrency),
		"clients": func(n *yaml.Node) { r.pool(n, "clients", true, &p.Clients) },
		"servers": func(n *yaml.Node) { r.pool(n, "servers", false, &p.Servers) },
		"vip":     scalar(r, &p.VIP, "an address", netip.ParseAddr),
		"ramp": func(n *yaml.Node) {
			r.list(n, "ramp", func(n *yaml.Node) {
				var s RampStep
				r.fields(n, "an entry of ramp", map[string]func(*yaml.Node){"until": r.time(&s.Until),
					"cps": r.real(&s.CPS)})
				p.Ramp = append(p.Ramp, s)
			})
		},
		"tcp": func(n *yaml.Node) {
			t := &p.TCP
			r.fields(n, "tcp", map[string]func(*yaml.Node){
				"mss": r.number(&t.MSS), "window": r.number(&t.Window), "retries": r.number(&t.Retries),
				"firstRTO": r.time(&t.FirstRTO), "minRTO": r.time(&t.MinRTO), "timeWait": r.time(&t.TimeWait),
			})
		},
		"templates": func(n *yaml.Node) {
			r.list(n, "templates", func(n *yaml.Node) { p.Templates = append(p.Templates, r.template(n)) })
		},
	})
}

func (r *reader) pool(n *yaml.Node, what string, withPorts bool, to *Pool) {
	var addresses, ports string
	known := map[string]func(*yaml.Node){"addresses": r.text(&addresses)}
	if withPorts {
		known["ports"] = r.text(&ports)
	}
	r.fields(n, what, known)
	if withPorts && ports == "" {
		r.fail(n, "%s has no ports: add ports: FIRST-LAST", what)
		return
	}
	p, err := ParsePool(addresses, ports)
	if err != nil {
		r.fail(n, "%s: %v", what, err)
	}
	*to = p
}

func (r *reader) template(n *yaml.Node) (t Template) {
	var port int
	r.fields(n, "a template", map[string]func(*yaml.Node){
		"name": r.text(&t.Name), "port": r.number(&port), "share": r.real(&t.Share),
		"timeout": r.time(&t.Timeout), "retries": r.number(&t.Retries), "close": r.side(&t.Close),
		"protocol": scalar(r, &t.Protocol, "a protocol: tcp or udp", func(s string) (Protocol, error) {
			switch s {
			case "tcp":
				return ProtocolTCP, nil
			case "udp":
				return ProtocolUDP, nil
			}
			return 0, errors.New("neither")
		}),
		"steps": func(n *yaml.Node) {
			r.list(n, "steps", func(n *yaml.Node) { t.Steps = append(t.Steps, r.steps(n, true)...) })
		},
	})
	if port < 1 || port > 65535 {
		r.fail(n, "template %s: port %d: 1 to 65535 are possible", t.Name, port)
	}
	t.Port = uint16(port)
	return t
}

// steps reads one entry: a step, or several repeated steps.
func (r *reader) steps(n *yaml.Node, repeatable bool) []Step {
	if repeatable && n.Kind == yaml.MappingNode && child(n, "repeat") != nil {
		return r.repetition(n)
	}
	var s Step
	var text, digits string
	r.fields(n, "a step", map[string]func(*yaml.Node){
		"from": r.side(&s.From), "size": r.number(&s.Size), "count": r.number(&s.Count), "after": r.time(&s.After),
		"text": r.text(&text), "hex": r.text(&digits),
	})
	if n.Kind != yaml.MappingNode {
		return nil
	}
	ways := 0
	for _, way := range []string{"size", "text", "hex"} {
		if child(n, way) != nil {
			ways++
		}
	}
	if child(n, "from") == nil || ways != 1 {
		r.fail(n, "a step needs from: client or server, and one of size, text and hex")
		return nil
	}
	switch {
	case text != "":
		s.Bytes = []byte(text)
	case digits != "":
		b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
		if err != nil {
			r.fail(n, "hex: %v: write two digits per byte; blanks are ignored", err)
		}
		s.Bytes = b
	}
	if s.Bytes != nil {
		s.Size = len(s.Bytes)
	}
	return []Step{s}
}

func (r *reader) repetition(n *yaml.Node) (steps []Step) {
	var times int
	var once []Step
	r.fields(n, "a repetition", map[string]func(*yaml.Node){
		"repeat": r.number(&times),
		"steps": func(n *yaml.Node) {
			r.list(n, "steps", func(n *yaml.Node) { once = append(once, r.steps(n, false)...) })
		},
	})
	if times < 1 || times*len(once) > MaxSteps {
		r.fail(n, "%d times %d steps: at least once, and at most %d steps, are possible", times, len(once), MaxSteps)
		return nil
	}
	for range times {
		steps = append(steps, once...)
	}
	return steps
}
