package pipeline

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"sluice.dev/sluice/test/bed/scratch"
)

//go:embed reference
var referenceSource embed.FS

// compilers in order of preference: Clang's code was faster wherever both were tried.
var compilers = []string{"clang", "gcc", "cc"}

// errNoCompiler: there is no compiler for the reference.
var errNoCompiler = errors.New("no C compiler (clang, gcc, cc) in PATH: install one, or measure without the " +
	"reference (--reference=false)")

// program is the compiled reference.
type program struct {
	dir, path string
	compiler  string // first line of its --version
}

// buildReference compiles the reference in a directory of its own, which remove deletes.
func buildReference(ctx context.Context) (*program, error) {
	compiler := ""
	for _, name := range compilers {
		if path, err := exec.LookPath(name); err == nil {
			compiler = path
			break
		}
	}
	if compiler == "" {
		return nil, errNoCompiler
	}
	dir, err := scratch.Temporary("sluice-reference-")
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	p := &program{dir: dir, path: filepath.Join(dir, "reference")}
	if err := p.compile(ctx, compiler); err != nil {
		p.remove()
		return nil, fmt.Errorf("reference: %w", err)
	}
	return p, nil
}

func (p *program) compile(ctx context.Context, compiler string) error {
	source, err := fs.Sub(referenceSource, "reference")
	if err == nil {
		err = os.CopyFS(p.dir, source)
	}
	if err != nil {
		return err
	}
	args := []string{"-std=c17", "-O3", "-march=native", "-o", p.path, filepath.Join(p.dir, "main.c")}
	if out, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", compiler, err, out)
	}
	version, err := exec.CommandContext(ctx, compiler, "--version").Output()
	if err == nil {
		line, _, _ := bytes.Cut(version, []byte("\n"))
		p.compiler = string(line)
	}
	return err
}

func (p *program) remove() { _ = os.RemoveAll(p.dir) } // a temporary directory: otherwise the system cleans it up

// reference is a running process of the reference, with its own flows, on a CPU.
type reference struct{ *partner }

// start starts the reference and waits until it has opened and checked its flows. cpu -1 is any.
func (p *program) start(
	ctx context.Context, v6 bool, flows, backends int, capacity uint32, cpu int,
) (*reference, error) {
	version := "4"
	if v6 {
		version = "6"
	}
	r, err := startPartner(ctx, "reference", p.path, "-family", version, "-flows", strconv.Itoa(flows),
		"-backends", strconv.Itoa(backends), "-capacity", strconv.FormatUint(uint64(capacity), 10), "-cpu",
		strconv.Itoa(cpu))
	if err != nil {
		return nil, err
	}
	return &reference{r}, nil
}

// sample is gate.sample in C; serial means without pipelining.
func (r *reference) sample(l load, chunks int, serial bool) (ns float64, err error) {
	how := "pipelined"
	if serial {
		how = "serial"
	}
	return r.nanos(sampleRequest(l, chunks) + " " + how)
}
