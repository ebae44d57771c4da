package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/pcapng"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// captureFlags has the flags of capture.
type captureFlags struct {
	query      status.CaptureQuery
	bytecode   string
	file       string
	count      uint64
	duration   time.Duration
	rotateSize int64 // MB
	rotateTime time.Duration
	files      int
}

func (s *session) captureCommand() *cobra.Command {
	var f captureFlags
	c := &cobra.Command{
		Use:   "capture [EXPRESSION...]",
		Short: "Capture packets where they come in, leave, and are dropped",
		Long: "capture writes packets of the gateway's workers as pcapng, which Wireshark and tcpdump read. Each\n" +
			"packet appears where it came in, where it left, and where it was dropped: these are interfaces of\n" +
			"the capture. Its comment has the verdict or drop reason, Service, backend, flow and worker.\n\n" +
			"A packet must match all filters. --client, --vip, --backend and --service select both directions of\n" +
			"flows, before and after translation. An EXPRESSION of tcpdump is tested on each of a packet's\n" +
			"appearances; tcpdump must be installed to compile it, here or where --bpf is made. Packets that the\n" +
			"kernel program leaves to the kernel, or drops while no worker runs, are not seen (docs/limits.md).",
		Example: "  sluice capture -w - | wireshark -k -i -\n" +
			"  sluice capture -w - --client 198.51.100.7 | tcpdump -n -r -\n" +
			"  sluice capture -w drops.pcapng --drop all --service shop/web --duration 1m\n" +
			"  sluice capture -w web.pcapng --rotate-size 100 --files 5 'tcp port 80'\n" +
			"  sluice capture -w - --bpf \"$(tcpdump -y EN10MB -ddd tcp port 80)\" | wireshark -k -i -",
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.complete(c.Context(), args); err != nil {
				return err
			}
			return s.capture(c.Context(), &f)
		},
	}
	f.define(s, c)
	return c
}

func (f *captureFlags) define(s *session, c *cobra.Command) {
	flags, q := c.Flags(), &f.query
	flags.StringVarP(&f.file, "write", "w", "", "file to write, or - for standard output (required)")
	flags.Var(endpointFlag{&q.Client}, "client", "only flows of this client: an address, address:port or prefix")
	flags.Var(endpointFlag{&q.VIP}, "vip", "only flows to this virtual address or node port")
	flags.Var(endpointFlag{&q.Backend}, "backend", "only flows to this backend")
	flags.Var((*serviceFlag)(&q.Service), "service",
		"only flows of this service: namespace/name or namespace/name:port")
	s.completeFlag(c, "service", s.serviceNames)
	s.completeFlag(c, "backend", s.backendAddresses)
	s.completeFlag(c, "vip", s.frontendAddresses)
	flags.StringSliceVar(&q.Drops, "drop", nil,
		"only packets that are dropped for this reason, where they are dropped; all: for any reason")
	flags.StringVar(&f.bytecode, "bpf", "", "only packets that match this filter, as tcpdump -y EN10MB -ddd prints it")
	flags.IntVarP(&q.Snap, "snapshot-length", "s", 0, "record at most this many bytes of each packet; 0: all")
	flags.IntVar(&q.Rate, "rate", status.DefaultCaptureRate,
		"record at most this many packets a second, and count the others; 0: no bound")
	flags.Uint64VarP(&f.count, "count", "c", 0, "end after this many recorded packets; 0: none")
	flags.DurationVar(&f.duration, "duration", 0, "end after this time; 0: never")
	flags.Int64Var(&f.rotateSize, "rotate-size", 0, "begin a new file after this many MB; 0: never")
	flags.DurationVar(&f.rotateTime, "rotate-time", 0, "begin a new file after this time; 0: never")
	flags.IntVar(&f.files, "files", 0, "keep only the newest of the files of a rotation; 0: all")
	must(c.RegisterFlagCompletionFunc("drop", cobra.FixedCompletions(dropNames(), cobra.ShellCompDirectiveNoFileComp)))
}

// dropNames lists the values of --drop.
func dropNames() []string { return append([]string{status.CaptureAll}, reason.Names()...) }

// complete checks the flags, and compiles the expression.
func (f *captureFlags) complete(ctx context.Context, expression []string) (err error) {
	rotates := f.rotateSize != 0 || f.rotateTime != 0
	switch {
	case f.file == "":
		return usageError{errors.New("capture needs a file: give -w FILE, or -w - for a pipe")}
	case f.query.Snap < 0 || f.query.Rate < 0 || f.rotateSize < 0 || f.rotateTime < 0 || f.duration < 0 || f.files < 0:
		return usageError{errors.New("no flag of capture may be negative")}
	case rotates && f.file == "-":
		return usageError{errors.New("--rotate-size and --rotate-time need a file: standard output is one")}
	case f.files > 0 && !rotates:
		return usageError{errors.New("--files is about the files of --rotate-size or --rotate-time")}
	case f.bytecode != "" && len(expression) > 0:
		return usageError{errors.New("capture takes an expression or --bpf, not both")}
	}
	for _, d := range f.query.Drops {
		if !slices.Contains(dropNames(), d) {
			return usageError{fmt.Errorf("--drop: there is no drop reason %q%s", d, wording.Suggest(d, dropNames()))}
		}
	}
	text := f.bytecode
	if len(expression) > 0 {
		if text, err = compileExpression(ctx, strings.Join(expression, " ")); err != nil {
			return err
		}
	}
	if f.query.Program, err = status.ParseProgram(text); err != nil {
		return usageError{fmt.Errorf("--bpf: %w", err)}
	}
	return nil
}

// compileExpression has tcpdump compile an expression for Ethernet.
func compileExpression(ctx context.Context, expression string) (string, error) {
	path, err := exec.LookPath("tcpdump")
	if err != nil {
		return "", fmt.Errorf("tcpdump, which compiles expressions, is not installed here: select by --client, --vip, "+
			"--backend, --service or --drop, or compile the expression on another machine: "+
			"--bpf \"$(tcpdump -y EN10MB -ddd %s)\"", expression)
	}
	var out, stderr bytes.Buffer
	c := exec.CommandContext(ctx, path, "-y", "EN10MB", "-ddd", "--", expression)
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return "", usageError{fmt.Errorf("tcpdump does not compile %q: %s", expression,
			cmp.Or(strings.TrimSpace(stderr.String()), err.Error()))}
	}
	return out.String(), nil
}

// capture runs a capture until it is interrupted, has enough, or the daemon ends it.
func (s *session) capture(ctx context.Context, f *captureFlags) error {
	if f.file == "-" && usage.IsTerminal(s.app.Out) {
		return usageError{errors.New("standard output is a terminal: pipe it into wireshark -k -i - or " +
			"tcpdump -r -, or write a file with -w FILE")}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	out := &pcapng.Splitter{Count: f.count, Enough: enough, Bytes: f.rotateSize * 1e6, Age: f.rotateTime, Keep: f.files,
		Path: f.file}
	if f.file == "-" {
		out.Out = s.app.Out
		var left context.CancelFunc
		ctx, left = s.attached(ctx, nil)
		defer left()
	}
	var v status.CaptureView
	err := s.ask(func(client *status.Client) (err error) {
		v, err = client.Capture(ctx, f.query, out)
		return err
	})
	err = errors.Join(err, out.Close())
	if out.Packets > 0 || err == nil {
		s.reportCapture(f, out, v)
	}
	if err == nil && v.Ended != "" {
		err = errors.New("the capture has ended: " + v.Ended)
	}
	return err
}

// reportCapture prints to standard error how many packets a capture has, and how many it lacks.
func (s *session) reportCapture(f *captureFlags, out *pcapng.Splitter, v status.CaptureView) {
	fmt.Fprintf(s.app.Err, "sluice: %s recorded", plural(int(out.Packets), "packet"))
	if len(out.Files) > 1 {
		fmt.Fprintf(s.app.Err, " in %d files, the last is %s", len(out.Files), out.Files[len(out.Files)-1])
	}
	if v.OverRate > 0 {
		fmt.Fprintf(s.app.Err, "; %d over the rate of --rate %d", v.OverRate, f.query.Rate)
	}
	if v.Lost > 0 {
		fmt.Fprintf(s.app.Err, "; %d lost, because the reader was slow", v.Lost)
	}
	fmt.Fprintln(s.app.Err)
}
