package status

import (
	"runtime"
	"runtime/debug"
)

// Version, and Commit for a release, are set by the linker: -X
// sluice.dev/sluice/serve/status.Version=v1.2.3. Nothing else writes them. If they are empty, the
// information that Go recorded of the module and its repository is used. Go records that in a clone
// and not in a linked worktree, and a release must not depend on which one it was built in.
var Version, Commit string

// Build identifies a build.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // version of the JSON output
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with uncommitted changes
	Time     string `json:"time,omitempty"`     // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns the build information of this binary.
func ThisBuild() Build {
	b := Build{Version: Version, Revision: Revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" +
		runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			case "vcs.time":
				b.Time = s.Value
			}
		}
	}
	if Commit != "" {
		b.Commit = Commit
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	return b
}

// String returns the build on one line.
func (b Build) String() string {
	s := "sluice " + b.Version
	if b.Commit != "" {
		s += " (" + b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + b.Go + " " + b.Platform
}
