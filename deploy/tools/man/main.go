// Command man writes the manual pages of sluice and of kubectl-sluice, which a release's archives
// contain:
//
//	go run ./man -time 1795461955 DIRECTORY
//
// The same tree and time give the same bytes.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"sluice.dev/sluice/gateway/cli"
	"sluice.dev/sluice/gateway/fleet"
	"sluice.dev/sluice/internal/usage"
)

func main() {
	seconds := flag.Int64("time", 0, "time of the pages, in seconds since the epoch")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("name the directory of the pages")
	}
	if err := write(flag.Arg(0), time.Unix(*seconds, 0).UTC()); err != nil {
		log.Fatal(err)
	}
}

// write writes a page for each command into a directory, which it makes.
func write(dir string, at time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, root := range []*cobra.Command{cli.Command(), fleet.Command()} {
		root.Long += exitStatus()
		header := &doc.GenManHeader{Section: "1", Date: &at, Source: "Sluice", Manual: "Sluice"}
		if err := doc.GenManTree(root, header, dir); err != nil {
			return err
		}
	}
	return nil
}

// exitStatus returns the section about exit codes, in Markdown.
func exitStatus() string {
	var b strings.Builder
	b.WriteString("\n\n# EXIT STATUS\n")
	for _, e := range usage.ExitCodes {
		fmt.Fprintf(&b, "\n**%d**", e.Code)
		if e.Of != "" {
			fmt.Fprintf(&b, " of %s", e.Of)
		}
		fmt.Fprintf(&b, ": %s\n", e.Meaning)
	}
	return b.String()
}
