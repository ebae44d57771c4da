package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/test/vm"
	"sluice.dev/sluice/test/vm/guest"
)

// Config says which rows to run and with what.
type Config struct {
	Rows     []Row
	Cache    vm.Cache
	Self     string // this program, which runs in the guest, too
	Sluice   string // the daemon's binary
	Logs     string // a directory: what each guest said
	Patience int    // multiplies every bound of time; 1 for a machine that does nothing else
	Out      io.Writer
}

// guestPatience is how much slower a guest is than iron, for bounds of time.
const guestPatience = 4

// rowLimit bounds one guest.
const rowLimit = 20 * time.Minute

// Outcome is what became of a row.
type Outcome struct {
	Row     *Row
	Kernel  vm.Kernel
	Results []guest.Result
	Err     error // the guest or the daemon did not come so far that all cases ran
	Elapsed time.Duration
}

func (o *Outcome) failed() bool {
	for _, r := range o.Results {
		if !r.OK {
			return true
		}
	}
	return o.Err != nil || len(o.Results) == 0
}

// Run runs the rows and writes each as it ends, and then a table of all. It returns an error if one
// failed.
func Run(ctx context.Context, c Config) error {
	if err := os.MkdirAll(c.Logs, 0o755); err != nil {
		return err
	}
	kernels := map[string]vm.Kernel{}
	for _, suite := range Kernels(c.Rows) {
		k, err := c.Cache.Fetch(ctx, suite, false)
		if err != nil {
			return err
		}
		kernels[suite] = k
	}
	began := time.Now()
	var outcomes []Outcome
	failed := 0
	for i := range c.Rows {
		r := &c.Rows[i]
		fmt.Fprintf(c.Out, "\n%d of %d: %s, Linux %s\n", i+1, len(c.Rows), r, kernels[r.Kernel].Release)
		o := c.row(ctx, r, kernels[r.Kernel])
		if o.Err != nil {
			fmt.Fprintf(c.Out, "  %v\n", o.Err)
		}
		if o.failed() {
			failed++
		}
		outcomes = append(outcomes, o)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Fprintln(c.Out)
	if err := table(c.Out, outcomes); err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "\n%d guests, %d failed, %v; their output is in %s\n", len(outcomes), failed,
		time.Since(began).Round(time.Second), c.Logs)
	if failed > 0 {
		return fmt.Errorf("%d of %d guests failed", failed, len(outcomes))
	}
	return nil
}

func (c *Config) row(ctx context.Context, r *Row, k vm.Kernel) Outcome {
	o := Outcome{Row: r, Kernel: k}
	began := time.Now()
	o.Err = c.boot(ctx, r, k, func(line []byte) {
		var result guest.Result
		if err := json.Unmarshal(line, &result); err != nil {
			fmt.Fprintf(c.Out, "  %s\n", line)
			return
		}
		o.Results = append(o.Results, result)
		fmt.Fprintf(c.Out, "  %-8s %-6s %6.1f s  %s\n", result.Case, verdict(result.OK), float64(result.Millis)/1000,
			result.Detail)
	})
	o.Elapsed = time.Since(began)
	if len(r.Command) > 0 {
		o.Results = []guest.Result{{Case: r.Command[0], OK: o.Err == nil, Millis: o.Elapsed.Milliseconds()}}
	}
	var status *vm.ExitError
	if errors.As(o.Err, &status) && o.failed() && len(o.Results) > 0 {
		o.Err = nil // the results say it better
	}
	return o
}

func (c *Config) boot(ctx context.Context, r *Row, k vm.Kernel, result func(line []byte)) (err error) {
	name := filepath.Join(c.Logs, strings.ReplaceAll(r.String(), " ", "-"))
	log, err := os.Create(name + ".log")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	nics, err := r.plug()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	var out io.Writer = &lines{each: result}
	if len(r.Command) > 0 {
		out = log
	}
	return vm.Run(ctx, vm.Config{
		Cache: c.Cache, Kernel: k, Args: c.args(r, k), Env: vm.Environment(os.Environ()), Dir: dir, NICs: nics,
		Stdout: out, Stderr: log, Console: name + ".console", Limit: time.Duration(c.Patience) * rowLimit,
	})
}

// plug are the NICs of a row's guest.
func (r *Row) plug() (nics []vm.NIC, err error) {
	if r.Left == "" {
		return nil, nil
	}
	for _, pair := range []string{"left=" + r.Left, "right=" + r.Right} {
		two, err := vm.ParsePair(pair)
		if err != nil {
			return nil, err
		}
		nics = append(nics, two...)
	}
	return nics, nil
}

// args is the command of a row's guest.
func (c *Config) args(r *Row, k vm.Kernel) []string {
	patience := strconv.Itoa(c.Patience * guestPatience)
	if len(r.Command) > 0 {
		return append(append([]string{c.Self}, r.Command...), "--sluice", c.Sluice, "--patience", patience)
	}
	return []string{
		c.Self, "vm", "guest", "--sluice", c.Sluice,
		"--left", string(r.Expected(r.Left, k)), "--right", string(r.Expected(r.Right, k)),
		"--mtu", strconv.Itoa(r.MTU), "--vlan", string(r.VLAN),
		"--options", r.Options, "--cases", strings.Join(r.Cases, ","),
		"--bytes", strconv.FormatInt(r.Megabytes*1e6, 10), "--kills", strconv.Itoa(r.Kills),
		"--take-overs", strconv.Itoa(r.TakeOvers),
		"--patience", patience,
	}
}

// lines calls each with every whole line that is written.
type lines struct {
	each func([]byte)
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, after, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.each(line)
		l.rest = after
	}
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAILED"
}
