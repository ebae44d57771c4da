package trex

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// python runs a program of this directory and decodes its output.
func python(t *testing.T, into any, file string) {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is not in PATH: without it nothing is known of these profiles; install it")
	}
	c := exec.Command(path, "-B", file)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// profile is the common content of a file of bench/profiles and of astf.py. Times are milliseconds.
type profile struct {
	Duration             float64
	ConnectionsPerSecond float64 `json:"connectionsPerSecond"`
	Concurrency          int
	Ramp                 float64
	Clients, Servers     string
	VIP                  string
	Templates            []template
}

type template struct {
	Name, Protocol string
	Port           int
	Share          float64
	Close          string
	Timeout        float64
	Retries        int
	Steps          []step
}

type step struct {
	From      string
	Size      *int
	Text, Hex *string
	After     float64
	Count     int
	Repeat    int
	Steps     []step
}

// The same in YAML, where times have units.
type yamlProfile struct {
	Name                 string
	Duration             time.Duration
	ConnectionsPerSecond float64 `yaml:"connectionsPerSecond"`
	Concurrency          int
	Clients              struct{ Addresses, Ports string }
	Servers              struct{ Addresses string }
	VIP                  string `yaml:"vip"`
	Ramp                 []struct {
		Until time.Duration
		CPS   float64 `yaml:"cps"`
	}
	Templates []yamlTemplate
}

type yamlTemplate struct {
	Name, Protocol string
	Port           int
	Share          float64
	Close          string
	Timeout        time.Duration
	Retries        int
	Steps          []yamlStep
}

type yamlStep struct {
	From      string
	Size      *int
	Text, Hex *string
	After     time.Duration
	Count     int
	Repeat    int
	Steps     []yamlStep
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (p *yamlProfile) plain(t *testing.T) (q profile) {
	if len(p.Ramp) != 1 || p.Ramp[0].CPS != p.ConnectionsPerSecond {
		t.Fatalf("profile %s: TRex ramps once, to the full rate; this one has %+v", p.Name, p.Ramp)
	}
	q = profile{
		Duration: millis(p.Duration), ConnectionsPerSecond: p.ConnectionsPerSecond, Concurrency: p.Concurrency,
		Ramp: millis(p.Ramp[0].Until), Clients: p.Clients.Addresses, Servers: p.Servers.Addresses, VIP: p.VIP,
	}
	for _, y := range p.Templates {
		q.Templates = append(q.Templates, template{
			y.Name, y.Protocol, y.Port, y.Share, y.Close, millis(y.Timeout), y.Retries, plainSteps(y.Steps),
		})
	}
	return q
}

func plainSteps(list []yamlStep) (steps []step) {
	for _, y := range list {
		s := step{y.From, y.Size, y.Text, y.Hex, millis(y.After), y.Count, y.Repeat, plainSteps(y.Steps)}
		if s.Repeat == 0 && s.Count == 0 {
			s.Count = 1
		}
		steps = append(steps, s)
	}
	return steps
}

// TestTwins: every profile has a twin with the same numbers, and there are no other twins.
func TestTwins(t *testing.T) {
	var twins map[string]profile
	python(t, &twins, "astf.py")
	files, err := filepath.Glob("../profiles/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no profiles: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p yamlProfile
		if err := yaml.Unmarshal(text, &p); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		twin, found := twins[name]
		if !found {
			t.Errorf("%s has no twin in astf.py", file)
			continue
		}
		delete(twins, name)
		if diff := gocmp.Diff(p.plain(t), twin); diff != "" {
			t.Errorf("%s and its twin differ (- yaml, + astf.py):\n%s", file, diff)
		}
	}
	for name := range twins {
		t.Errorf("astf.py has %s, bench/profiles has not", name)
	}
}

// total is the sum of a program's actions.
type total struct{ Send, Recv, Delay, Wait int }

type dry struct {
	ASTF map[string]struct {
		Ramp             int
		Clients, Servers []string
		Templates        []struct {
			Port, Listens  int
			CPS            float64
			Client, Server total
		}
	}
	STL map[string][]struct {
		Frame     int
		Layers    []string
		Weight    int
		Variables map[string]int
	}
}

// TestPrograms runs the profiles with a substitute for TRex: both sides of a template agree on
// every byte (TCP) and datagram, and shares add up.
func TestPrograms(t *testing.T) {
	var d dry
	python(t, &d, "testdata/run.py")
	if len(d.ASTF) == 0 {
		t.Fatal("there are no stateful profiles")
	}
	for name, p := range d.ASTF {
		sum := 0.0
		for _, q := range p.Templates {
			sum += q.CPS
			if q.Port != q.Listens {
				t.Errorf("%s: clients ask port %d, servers listen on %d", name, q.Port, q.Listens)
			}
			if q.Client.Send != q.Server.Recv || q.Client.Recv != q.Server.Send || q.Client.Send == 0 ||
				q.Server.Send == 0 {
				t.Errorf("%s, port %d: the client does %+v, the server %+v", name, q.Port, q.Client, q.Server)
			}
			if q.Client.Wait+q.Server.Wait > 1 {
				t.Errorf("%s, port %d: both sides wait for the other to close", name, q.Port)
			}
		}
		var twins map[string]profile
		python(t, &twins, "astf.py")
		if sum != twins[name].ConnectionsPerSecond {
			t.Errorf("%s: templates make %v connections/s of %v", name, sum, twins[name].ConnectionsPerSecond)
		}
		if p.Ramp != int(twins[name].Ramp/1000) || p.Servers[0] != twins[name].VIP {
			t.Errorf("%s: ramp of %d s to %v", name, p.Ramp, p.Servers)
		}
	}
	if feed := d.ASTF["streams"].Templates[0]; feed.Server != (total{Send: 40000, Recv: 520, Delay: 10_000_000,
		Wait: 1}) {
		t.Errorf("the server of a feed does %+v; it should send 20 times 2000 bytes, 0.5 s apart", feed.Server)
	}
}

// TestStateless: frames have their size on the wire without check sequence, and there are as many
// flows as requested.
func TestStateless(t *testing.T) {
	var d dry
	python(t, &d, "testdata/run.py")
	var loads map[string]struct{ Sizes [][2]int }
	python(t, &loads, "stl.py")
	for name, load := range loads {
		streams := d.STL[name]
		if len(streams) != len(load.Sizes) {
			t.Errorf("%s has %d streams for %d sizes", name, len(streams), len(load.Sizes))
			continue
		}
		for i, s := range streams {
			if want := load.Sizes[i][0] - 4; s.Frame != want || s.Weight != load.Sizes[i][1] {
				t.Errorf("%s: a frame of %d, weight %d; want %d, %d", name, s.Frame, s.Weight, want, load.Sizes[i][1])
			}
			ports, addresses := s.Variables["port"], s.Variables["address"]
			if flows := ports / gcd(ports, addresses) * addresses; flows < 1_000_000 || flows > 1_200_000 {
				t.Errorf("%s: %d ports and %d addresses together make %d flows, not a million", name, ports, addresses,
					flows)
			}
		}
	}
	if got := loads["imix"].Sizes; !gocmp.Equal(got, [][2]int{{64, 7}, {594, 4}, {1518, 1}}) {
		t.Errorf("simple IMIX is %v", got)
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// TestService: the Service of the manifest has every port of the profiles, and the VIP; its
// endpoints are the servers.
func TestService(t *testing.T) {
	text, err := os.ReadFile("service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var service struct {
		Spec struct {
			Ports []struct {
				Port     int
				Protocol string
			}
		}
		Status struct {
			LoadBalancer struct{ Ingress []struct{ IP string } } `yaml:"loadBalancer"`
		}
	}
	if err := yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), &service); err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, p := range service.Spec.Ports {
		has[fmt.Sprintf("%d/%s", p.Port, cmp.Or(strings.ToLower(p.Protocol), "tcp"))] = true
	}
	want := map[string]bool{"5000/udp": true}
	var twins map[string]profile
	python(t, &twins, "astf.py")
	for name, p := range twins {
		for _, q := range p.Templates {
			want[fmt.Sprintf("%d/%s", q.Port, q.Protocol)] = true
		}
		if ip := service.Status.LoadBalancer.Ingress[0].IP; ip != p.VIP {
			t.Errorf("the Service has VIP %s, profile %s asks %s", ip, name, p.VIP)
		}
	}
	if diff := gocmp.Diff(want, has); diff != "" {
		t.Errorf("ports that are asked and ports of the Service (- asked, + there):\n%s", diff)
	}
}
