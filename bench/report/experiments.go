package report

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// Experiment is one command of the laboratory.
type Experiment struct {
	Name  string // of its file, and in tables
	About string // its question
	// Quick and Full are the arguments of sluice-bench, without --json. An experiment without
	// Quick is not in the quick set.
	Quick, Full []string
	// Minutes are the approximate duration of Full; the estimate of the remaining time uses them.
	Minutes float64
}

// Peers in all RPS variants: ratios are to the best.
const (
	nftables  = "nftables,nftables-rps,nftables-rps-free"
	kubeProxy = "kube-proxy-nftables,kube-proxy-nftables-rps,kube-proxy-nftables-rps-free"
)

// Experiments are the parts of the report, in the order of running and showing. The report has a
// line for each missing one.
func Experiments() []Experiment {
	return []Experiment{
		{
			Name: "pipeline", About: "a worker's own work per packet, beside the same work in C",
			Quick: []string{"pipeline", "--flows", "1000,100000", "--scenario", "steady", "--repeat", "1",
				"--windows", "50"},
			Full:    []string{"pipeline", "--full"},
			Minutes: 20,
		},
		{
			Name: "compare",
			About: "Sluice, bare forwarders and kube-proxy in one topology: rate and CPU per packet at the highest " +
				"rate",
			Quick:   []string{"compare", "--quick"},
			Full:    []string{"compare", "--rates"},
			Minutes: 20,
		},
		{
			Name:  "latency",
			About: "the rate without loss, latency at parts of it, and CPU per packet at one rate for all",
			Full: []string{"compare", "--services", "1000", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat,kernel," + nftables, "--senders", "two-queues", "--trial", "300ms",
				"--duration", "1s"},
			Minutes: 12,
		},
		{
			Name:  "latency-at",
			About: "latency and CPU per packet at the same rates for all, of both ways of waiting",
			Full: []string{"compare", "--services", "1", "--at", "20k,100k,200k,50%,90%", "--systems",
				"sluice,sluice-shared,l2fwd,xdp-nat," + nftables, "--senders", "one-queue,two-queues"},
			Minutes: 20,
		},
		{
			Name:  "latency-first",
			About: "latency-at with the benchmark's session before the machine's others",
			Full: []string{"compare", "--services", "1", "--at", "20k,100k,200k,50%,90%", "--first", "--systems",
				"sluice,sluice-shared,l2fwd,xdp-nat," + nftables, "--senders", "one-queue,two-queues"},
			Minutes: 20,
		},
		{
			Name: "services", About: "the same rates against the number of Services",
			Full: []string{"compare", "--rates", "--services", "1,100,1000,10000", "--senders", "two-queues",
				"--systems", "sluice,sluice-placed,l2fwd,xdp-nat," + nftables + "," + kubeProxy +
					",kube-proxy-iptables,kube-proxy-iptables-rps,kube-proxy-iptables-rps-free"},
			Minutes: 25,
		},
		{
			Name: "flows-10k", About: "the same rates with 10,000 flows and one Service",
			Full: []string{"compare", "--rates", "--services", "1", "--flows", "10000", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat," + nftables + "," + kubeProxy},
			Minutes: 12,
		},
		{
			Name: "flows-100k", About: "the same rates with 100,000 flows and one Service",
			Full: []string{"compare", "--rates", "--services", "1", "--flows", "100000", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat," + nftables + "," + kubeProxy},
			Minutes: 12,
		},
		{
			Name: "flows-1m", About: "the same rates with 1,000,000 flows, beside NAT in the kernel by XDP",
			Full: []string{"compare", "--rates", "--services", "1", "--flows", "1000000", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat"},
			Minutes: 25,
		},
		{
			Name: "flows-4m", About: "the same rates with 4,000,000 flows, beside NAT in the kernel by XDP",
			Full: []string{"compare", "--rates", "--services", "1", "--flows", "4000000", "--repeat", "3", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat"},
			Minutes: 60,
		},
		{
			Name: "both-ways", About: "the same rates with each packet answered, one Service",
			Full: []string{"compare", "--rates", "--services", "1", "--both-ways", "--systems",
				"sluice,sluice-placed,l2fwd,xdp-nat," + nftables},
			Minutes: 8,
		},
		{
			Name:    "bulk",
			About:   "TCP at full speed, one and eight connections, beside nftables with and without offloads",
			Full:    []string{"compare", "--bulk", "--services", "1"},
			Minutes: 10,
		},
		{
			Name: "steps", About: "a worker's longest step, under several loads",
			Full:    []string{"steps"},
			Minutes: 2,
		},
		{
			Name: "updates", About: "how long a change takes to reach packets",
			Full:    []string{"updates"},
			Minutes: 1,
		},
		{
			Name:    "stateful",
			About:   "connections per second and concurrent connections of the lab's own generator, in memory",
			Full:    []string{"stateful", "--memory"},
			Minutes: 2,
		},
		{
			Name: "connections",
			About: "connections of mixed protocols through the gateway while endpoints change: none may meet two " +
				"servers",
			Full:    []string{"stateful", "mix", "--through", "none,sluice", "--churn", "10"},
			Minutes: 5,
		},
		{
			Name: "connect", About: "latency for a TCP client, beside kube-proxy: connect, first byte, 10 KB",
			Full: []string{"stateful", "answers", "--through", "none,sluice,nftables,iptables", "--services", "100",
				"--rates", "1000,5000,10000,20000", "--repeat", "5"},
			Minutes: 4,
		},
		{
			Name:    "generator",
			About:   "the rate of the lab's generator and receiver over a bare veth: the ceiling of its measurements",
			Full:    []string{"rfc2544", "--loopback"},
			Minutes: 5,
		},
	}
}

// line is an experiment without figures, with the reason.
type line struct {
	Name, Why, Command string
	Failed             bool
}

// absent returns the experiments that failed or were not run, so that no experiment is omitted
// silently.
func absent(runs []*results.Run, known []Experiment) (list []line) {
	named := make(map[string]*results.Run)
	for _, r := range runs {
		named[r.Name] = r
		if r.Failed != "" {
			what := "failed"
			if len(r.Points) > 0 {
				what = "ended with an error, after the figures below"
			}
			name := r.Name
			if name == "" {
				name = r.Command
			}
			list = append(list, line{name, what + ": " + r.Failed, r.Command, true})
		}
	}
	for _, e := range known {
		if named[e.Name] == nil {
			list = append(list, line{e.Name, "not measured (" + e.About + ")", "sluice-bench " + strings.Join(e.Full,
				" "), false})
		}
	}
	return list
}

// choose selects experiments by name, and returns the arguments of the set.
func choose(set string, names []string) (list []Experiment, arguments func(Experiment) []string, err error) {
	switch set {
	case "quick":
		arguments = func(e Experiment) []string { return e.Quick }
	case "full":
		arguments = func(e Experiment) []string { return e.Full }
	default:
		return nil, nil, fmt.Errorf("set %q: there are quick and full", set)
	}
	var known []string
	for _, e := range Experiments() {
		known = append(known, e.Name)
		wanted := slices.Contains(names, e.Name) || len(names) == 0
		if wanted && arguments(e) != nil {
			list = append(list, e)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, nil, fmt.Errorf("experiment %q: there are %s", n, strings.Join(known, ", "))
		}
	}
	if len(list) == 0 {
		return nil, nil, fmt.Errorf("none of %s is in the %s set", strings.Join(names, ", "), set)
	}
	return list, arguments, nil
}
