package soak

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"sluice.dev/sluice/test/bed/launch"
)

// Config describes a soak.
type Config struct {
	Sluice      string        // path of the daemon's binary
	Duration    time.Duration // of all rounds; the last one may end later
	Connections int           // established TCP, opened before the first round
	Datagrams   int           // UDP flows
	FloodRate   int           // packets a second of a flood
	Seed        uint64        // of faults and their moments; 0 takes one from the clock
	Out         io.Writer     // the tables
	Progress    io.Writer     // a line for each round
}

// Defaults is the soak as it is documented.
func Defaults() Config {
	return Config{Duration: time.Hour, Connections: 500, Datagrams: 200, FloodRate: 10_000, Out: os.Stdout,
		Progress: os.Stderr}
}

func (c *Config) check() (err error) {
	switch {
	case c.Duration < time.Second || c.Duration > 7*24*time.Hour:
		return fmt.Errorf("a duration of %v: 1 s to 7 days are possible", c.Duration)
	case c.Connections < 1 || c.Connections > 10_000 || c.Datagrams < 1 || c.Datagrams > 10_000:
		return fmt.Errorf("%d connections, %d UDP flows: 1 to 10,000 of each are possible", c.Connections, c.Datagrams)
	case c.FloodRate < 1 || c.FloodRate > 10_000_000:
		return fmt.Errorf("a flood of %d packets a second: 1 to 10,000,000 are possible", c.FloodRate)
	case c.Out == nil || c.Progress == nil:
		return errors.New("no writer for tables or progress")
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	c.Sluice, err = launch.Find(c.Sluice)
	return err
}
