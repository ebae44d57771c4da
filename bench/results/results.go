// Package results is the common format of the laboratory's results: a Run is a machine, a command
// and Points, and is saved as JSON. It is the only input of reports, plots, tables and comparisons.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/test/bed/procstat"
)

// Run is the result of one command.
type Run struct {
	// Name is the experiment's name in the report's list; Failed, if not empty, is the error with
	// which it ended. The program that runs the list sets both.
	Name    string    `json:"name,omitempty"`
	Failed  string    `json:"failed,omitempty"`
	Command string    `json:"command"` // as typed in a shell
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Stolen is the share of all processors' time, 0 to 1, that the hypervisor did not give to this
	// machine during the run.
	Stolen  float64 `json:"stolen,omitempty"`
	Version string  `json:"version"` // of Sluice: git describe
	Machine Machine `json:"machine"`
	Points  []Point `json:"points"`

	before procstat.Usage // at Begin
}

// Machine is the description of a machine that a reader of figures needs.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int    `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Link     string `json:"link"` // the packets' path: "veth, native XDP, copy mode"
	Notes    string `json:"notes,omitempty"`

	// Further properties found by ThisMachine; empty or 0 if unknown.
	MHz        float64 `json:"mhz,omitempty"`        // of the first core, from /proc/cpuinfo
	Hypervisor string  `json:"hypervisor,omitempty"` // "none", or the name in DMI
	HugePages  string  `json:"huge_pages,omitempty"` // transparent huge pages: always, madvise, never
	CC         string  `json:"cc,omitempty"`         // first line of `cc --version`
}

// Point is one metric of one system under one set of conditions.
type Point struct {
	Experiment string `json:"experiment"` // "pipeline", "throughput", "latency"
	System     string `json:"system"`     // "sluice", "nftables"
	// Params are the conditions: the varied ones, and others that a reader must know. Two points
	// measure the same thing if Experiment and Params are equal.
	Params map[string]string `json:"params,omitempty"`
	Metric string            `json:"metric"` // "rate", "ns_per_packet"
	Unit   string            `json:"unit"`   // "Mpps", "ns", "ratio"
	// Better is "higher" or "lower".
	Better string `json:"better"`
	// Samples are the values of interleaved repetitions, in the order they were taken.
	Samples []float64 `json:"samples"`
	// Remark is information that a reader needs beside the conditions: "the sender could send no
	// more in 3 of 5 rounds". It is no condition: points that differ only in it measure the same
	// thing.
	Remark string `json:"remark,omitempty"`
	// Curve, if set, is a distribution: pairs of percentile (0 to 100) and value.
	Curve [][2]float64 `json:"curve,omitempty"`
	// Interval, if set, is a confidence interval of the median of Samples. It is then compared with
	// the target instead of the median: the target is met if the interval includes it or better
	// values.
	Interval *Interval `json:"interval,omitempty"`
	// Target is the project's bound on the figure, in Unit; nil if there is none.
	Target *float64 `json:"target,omitempty"`
}

// Interval encloses a figure's true value with a probability of Confidence, 0 to 1.
type Interval struct {
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"`
}

// Median returns the middle sample, or the mean of the two; 0 without samples.
func (p *Point) Median() float64 {
	s := slices.Sorted(slices.Values(p.Samples))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Met reports whether the median, or the better end of the interval if there is one, meets the
// target; true if there is no target.
func (p *Point) Met() bool {
	low, high := p.Median(), p.Median()
	if p.Interval != nil {
		low, high = p.Interval.Low, p.Interval.High
	}
	switch {
	case p.Target == nil:
		return true
	case p.Better == "lower":
		return low <= *p.Target
	}
	return high >= *p.Target
}

// Save writes the run to a file.
func (r *Run) Save(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	return nil
}

// Load reads a file of Save.
func Load(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load results: %w", err)
	}
	var r Run
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("load results: %s: %w", path, err)
	}
	return &r, nil
}
