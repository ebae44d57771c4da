package upstream

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// Suite is a built e2e.test and the files that it needs to reach a cluster.
type Suite struct {
	Test, Kubectl string // paths of the programs
	Kubeconfig    string // of an administrator, as the client's host reaches the API server
	Client        *topo.Host
	Dir           string // where each run gets a directory for its output
}

// Outcome is how a case ended.
type Outcome struct {
	Passed, Skipped bool
	Message         string // of a failure or a skip
	Namespaces      []string
	Log             string // path of all that e2e.test wrote
	Took            time.Duration
}

const prefix = "[sig-network] "

// destroyed matches the framework's line about each namespace that a case had.
var destroyed = regexp.MustCompile(`Destroying namespace "([^"]+)" for this suite`)

// Run runs one case from the client's host. An error means that e2e.test could not be run, not that
// the case failed.
func (s *Suite) Run(ctx context.Context, name string, limit time.Duration) (Outcome, error) {
	dir, err := os.MkdirTemp(s.Dir, "case-")
	if err != nil {
		return Outcome{}, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return Outcome{}, err
	}
	defer log.Close() // the process has its own
	began := time.Now()
	p, err := s.Client.Start(topo.Command{
		Path: s.Test, Dir: dir, Stdout: log, Stderr: log,
		// Only this kubeconfig determines which cluster kubectl uses.
		Env: []string{"KUBECONFIG=" + s.Kubeconfig, "HOME=" + dir},
		Args: []string{
			"--kubeconfig=" + s.Kubeconfig, "--kubectl-path=" + s.Kubectl, "--provider=skeleton",
			"--report-dir=" + dir, "--disable-log-dump",
			// The cluster's, as some cases skip themselves by how many nodes are not cordoned.
			fmt.Sprint("--num-nodes=", len(Lab{}.Nodes)),
			// The matched text begins with the suite's name (ginkgo/v2, internal/focus.go).
			"--ginkgo.focus=" + regexp.QuoteMeta(" "+prefix+name) + "$", "--ginkgo.no-color", "--ginkgo.v",
			"--ginkgo.timeout=" + limit.String(),
		},
	})
	if err != nil {
		return Outcome{}, err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return Outcome{}, errors.Join(ctx.Err(), p.Stop(10*time.Second))
	}
	o := Outcome{Log: log.Name(), Took: time.Since(began)}
	text, err := os.ReadFile(o.Log)
	if err != nil {
		return o, err
	}
	for _, m := range destroyed.FindAllStringSubmatch(string(text), -1) {
		o.Namespaces = append(o.Namespaces, m[1])
	}
	return o, o.read(dir, name)
}

// report has the fields read of a JUnit file (ginkgo/v2, reporters/junit_report.go).
type report struct {
	Suites []struct {
		Cases []struct {
			Name    string   `xml:"name,attr"`
			Status  string   `xml:"status,attr"`
			Skipped *message `xml:"skipped"`
			Failure *message `xml:"failure"`
			Error   *message `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

type message struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (m *message) String() string {
	if m.Message != "" {
		return m.Message
	}
	return strings.TrimSpace(m.Text)
}

// read finds the case in the report that e2e.test wrote.
func (o *Outcome) read(dir, name string) error {
	text, err := os.ReadFile(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return fmt.Errorf("e2e.test wrote no report, see %s: %w", o.Log, err)
	}
	return o.parse(text, name)
}

func (o *Outcome) parse(text []byte, name string) error {
	var r report
	if err := xml.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("report of e2e.test: %w", err)
	}
	found := false
	for _, suite := range r.Suites {
		for _, c := range suite.Cases {
			switch {
			case c.Failure != nil: // also of setup and teardown
				o.Message = c.Failure.String()
			case c.Error != nil:
				o.Message = c.Error.String()
			case strings.HasSuffix(strings.TrimSpace(c.Name), prefix+name):
				found = true
				if c.Skipped != nil {
					o.Skipped, o.Message = true, c.Skipped.String()
				}
			}
		}
	}
	if !found && o.Message == "" {
		return fmt.Errorf("e2e.test has no case %q", prefix+name)
	}
	o.Passed = found && !o.Skipped && o.Message == ""
	return nil
}

// List is the names of all cases of the network group, without the group's prefix.
func (s *Suite) List(ctx context.Context) ([]string, error) {
	out, err := s.output(ctx, "--list-tests")
	return listed(out), err
}

// output is what e2e.test prints for a flag that runs no case.
func (s *Suite) output(ctx context.Context, flag string) (string, error) {
	out, err := exec.CommandContext(ctx, s.Test, flag).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("e2e.test %s: %w\n%s", flag, err, out)
	}
	return string(out), nil
}

// listed reads what --list-tests prints: "    file.go:line: name" for each case.
func listed(text string) (names []string) {
	for line := range strings.Lines(text) {
		if _, name, ok := strings.Cut(line, prefix); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}
