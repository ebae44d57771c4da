package daemon

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/gateway/trends"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/journal"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// ownJournal reads the events of earlier processes, and writes the journal's file from then on.
func (d *Daemon) ownJournal() {
	if err := d.settings.journal.Own(d.settings.atStart.StateDir); err != nil {
		d.log.Warn("events of earlier processes are lost", "error", err)
	}
}

// Events implements status.Gateway.
func (d *Daemon) Events(since time.Time) []status.EventView {
	list := []status.EventView{}
	for _, e := range d.settings.journal.Since(since) {
		list = append(list, status.EventView(e))
	}
	return list
}

// trendsEvery is the interval between two samples of the counters.
const trendsEvery = 2 * time.Second

// followTrends logs drops, fill of tables and stalled loops when they begin and end.
func (d *Daemon) followTrends(ctx context.Context) {
	beat := d.beats.Add("watch of counters", heartbeat.DefaultBounds)
	defer beat.Rest()
	w := trends.New(d.log, reason.HostLinkOther.String())
	tick := time.NewTicker(trendsEvery)
	defer tick.Stop()
	for {
		beat.Beat()
		w.Look(d.sample())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *Daemon) sample() *trends.Sample {
	s := trends.Sample{Now: time.Now(), Drops: map[string]uint64{}, Fill: map[string]trends.Fill{}}
	for _, b := range d.workers.Blocks() {
		for i := range b.Drops {
			s.Drops[reason.Drop(i).String()] += b.Drops[i].Load()
		}
	}
	steering := d.steeringCounts()
	for _, name := range []string{"denied_dropped", "missed_dropped"} {
		if n, known := steering[name]; known {
			s.Drops[name] = n
		}
	}
	c := d.flows.file.Table.Counts()
	for f, name := range [...]string{"flows ipv4", "flows ipv6"} {
		s.Fill[name] = trends.Fill{Used: c.Live[f], Capacity: c.Capacity[f]}
	}
	s.Fill["half-open flows"] = trends.Fill{Used: c.HalfOpen, Capacity: c.MaxHalfOpen}
	for _, id := range d.stalled() {
		s.Stalled = append(s.Stalled, fmt.Sprintf("worker %d", id))
	}
	for _, l := range d.beats.Late() {
		s.Stalled = append(s.Stalled, l.Name)
	}
	return &s
}

// journalCondition warns if events are not stored for the next process.
func journalCondition(j *journal.Journal) []status.ConditionView {
	if err := j.Err(); err != nil {
		return []status.ConditionView{status.Warning("events", "events are not stored for the next process: "+
			err.Error())}
	}
	return nil
}
