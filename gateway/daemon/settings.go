package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/journal"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/serve/status"
)

// settings own the configuration in force, which a reload replaces.
type settings struct {
	file    string
	atStart *config.Configuration // for the settings that only a restart changes
	log     *slog.Logger
	level   *slog.LevelVar // of log
	journal *journal.Journal

	mu          sync.Mutex // guards the fields below
	inForce     *config.Configuration
	read        contents // the last time that the file was loaded
	loadedAt    time.Time
	reloadErr   error           // the last load failed with it
	needRestart []config.Change // differences of the file that take effect after a restart
}

// loadSettings reads and validates the file, and makes the logger that it configures.
func loadSettings(file string) (*settings, error) {
	c, read, err := load(file)
	if err != nil {
		return nil, err
	}
	// Clients of the status socket show the path, and have other working directories.
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	h, err := config.ReadHost()
	if err != nil {
		return nil, err
	}
	if err := c.CheckHost(file, h); err != nil {
		return nil, err
	}
	s := &settings{file: file, atStart: c, inForce: c, read: read, loadedAt: time.Now(), level: new(slog.LevelVar),
		journal: journal.New()}
	s.setLevel(c)
	s.log = slog.New(journal.Tee(logs.NewHandler(logs.Stderr, string(c.Log.Format), s.level), s.journal))
	return s, nil
}

// config returns the configuration in force.
func (s *settings) config() *config.Configuration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inForce
}

func (s *settings) setLevel(c *config.Configuration) {
	s.level.Set(map[config.LogLevel]slog.Level{
		config.LogDebug: slog.LevelDebug, config.LogInfo: slog.LevelInfo,
		config.LogWarn: slog.LevelWarn, config.LogError: slog.LevelError,
	}[c.Log.Level])
}

// changed reports whether the file differs from the contents that were loaded last. If it may have
// been replaced just now, a missing file counts as unchanged: an editor or a kubelet may have
// removed it for a moment.
func (s *settings) changed(replaced bool) bool {
	now, err := readFile(s.file)
	if replaced && errors.Is(err, fs.ErrNotExist) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return now != s.read
}

// reload puts the settings of the file in force that need no restart, and returns them. An invalid
// file changes nothing, and reload returns nil.
func (s *settings) reload() *config.Configuration {
	next, read, err := load(s.file)
	s.mu.Lock()
	defer s.mu.Unlock()
	var merged *config.Configuration
	if err == nil {
		next = s.keepMembers(next)
		merged, err = s.merge(next)
	}
	s.read, s.reloadErr = read, err
	if err != nil {
		s.log.Error("configuration is refused, the last one stays in force", "error", err)
		return nil
	}
	s.needRestart = nil
	for _, c := range s.inForce.Diff(next) {
		if c.Restart {
			s.needRestart = append(s.needRestart, c)
		}
		s.log.Info("configuration changed", "change", c.String())
	}
	s.inForce, s.loadedAt = merged, time.Now()
	s.setLevel(s.inForce)
	return s.inForce
}

// setMembers puts a list of members in force that Nodes have.
func (s *settings) setMembers(list []config.GroupMember) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = s.inForce.WithMembers(list)
}

// keepMembers returns next with the members in force, if both take their members from Nodes. mu
// must be held.
func (s *settings) keepMembers(next *config.Configuration) *config.Configuration {
	if s.inForce.Group.Nodes == "" || next.Group.Nodes == "" {
		return next
	}
	return next.WithMembers(s.inForce.Group.Members)
}

// merge returns the settings of the file that need no restart, and the present values of all other
// settings. Each of two files may be valid, and the mixture not: a source address of the group in
// force may be in a pool of the new file.
func (s *settings) merge(next *config.Configuration) (*config.Configuration, error) {
	merged := s.inForce.Reload(next)
	if err := merged.Validate(); err != nil {
		return nil, fmt.Errorf("%s cannot be in force before the daemon restarts, because of settings that only a "+
			"restart changes: %w", s.file, err)
	}
	return merged, nil
}

// view describes the file and its last load for the status.
func (s *settings) view() status.ConfigView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := status.ConfigView{File: s.file, LoadedAt: s.loadedAt}
	if s.reloadErr != nil {
		v.Error = s.reloadErr.Error()
	}
	for _, c := range s.needRestart {
		v.NeedRestart = append(v.NeedRestart, c.String())
	}
	return v
}

// contents are the result of reading the configuration file.
type contents struct {
	text   string
	unread string // why it could not be read
}

func readFile(file string) (contents, error) {
	text, err := config.Read(file)
	if err != nil {
		return contents{unread: err.Error()}, err
	}
	return contents{text: string(text)}, nil
}

// load is config.Load that also returns the contents, which settings.changed compares.
func load(file string) (c *config.Configuration, read contents, err error) {
	if read, err = readFile(file); err == nil {
		c, err = config.ParseFile(file, []byte(read.text))
	}
	return c, read, err
}
