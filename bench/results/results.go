// Package results is what the experiments of the laboratory say, in one form: a
// Run is a machine, a command and Points, and is saved as JSON. Reports, plots,
// tables and comparisons read nothing else.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/test/bed/procstat"
)

// Run is one command's outcome.
type Run struct {
	// Name is what the report's list of experiments calls it; Failed, where it is not empty, why
	// it ended with an error. Who runs the list writes both.
	Name    string    `json:"name,omitempty"`
	Failed  string    `json:"failed,omitempty"`
	Command string    `json:"command"` // as a reader would type it
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Stolen is the share of all processors' time, 0 to 1, that the hypervisor spent elsewhere
	// while this ran.
	Stolen  float64 `json:"stolen,omitempty"`
	Version string  `json:"version"` // of Sluice: git describe
	Machine Machine `json:"machine"`
	Points  []Point `json:"points"`

	before procstat.Usage // as of Begin
}

// Machine is what a figure cannot be read without.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int    `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
	Link     string `json:"link"` // what packets went over: "veth, native XDP, copy mode"
	Notes    string `json:"notes,omitempty"`

	// What ThisMachine finds beside these; empty or 0 where it is not known.
	MHz        float64 `json:"mhz,omitempty"`        // of the first core, as /proc/cpuinfo says
	Hypervisor string  `json:"hypervisor,omitempty"` // "none", or its name as DMI has it
	HugePages  string  `json:"huge_pages,omitempty"` // transparent ones: always, madvise, never
	CC         string  `json:"cc,omitempty"`         // first line of `cc --version`
}

// Point is one metric of one system under one set of conditions.
type Point struct {
	Experiment string `json:"experiment"` // "pipeline", "throughput", "latency"
	System     string `json:"system"`     // "sluice", "nftables"
	// Params are the conditions: what is varied, and what a reader must know. Two points
	// are about the same thing where Experiment and Params are equal.
	Params map[string]string `json:"params,omitempty"`
	Metric string            `json:"metric"` // "rate", "ns_per_packet"
	Unit   string            `json:"unit"`   // "Mpps", "ns", "ratio"
	// Better is "higher" or "lower".
	Better string `json:"better"`
	// Samples are the values of interleaved repetitions, in the order they were taken.
	Samples []float64 `json:"samples"`
	// Remark is what a reader of the figure must know beside the conditions: "the sender could send
	// no more in 3 of 5 rounds". It is no condition: points that differ in it are about the same
	// thing.
	Remark string `json:"remark,omitempty"`
	// Curve, where there is one, is a distribution: pairs of percentile (0 to 100) and value.
	Curve [][2]float64 `json:"curve,omitempty"`
	// Interval, where there is one, is a confidence interval of the median of Samples; then it is
	// what is held to the target, and not the median: the target is kept if the interval includes
	// it or better.
	Interval *Interval `json:"interval,omitempty"`
	// Target is the bound that the project holds itself to, in Unit; nil if there is none.
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

// Met reports whether the median, or the better end of the interval where there is one, keeps the
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

// Load reads what Save wrote.
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
