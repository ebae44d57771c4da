package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sluice.dev/sluice/gateway/drops"
	"sluice.dev/sluice/gateway/flowlog"
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
	tick, samples := time.NewTicker(trendsEvery), time.NewTicker(drops.Interval)
	defer tick.Stop()
	defer samples.Stop()
	w.Look(d.sample())
	for {
		beat.Beat()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.Look(d.sample())
		case now := <-samples.C:
			d.drops.Drain(now)
			d.workers.RefillTimes()
		}
	}
}

// watchDrops makes the watch of samples of dropped packets.
func (d *Daemon) watchDrops() {
	c := drops.Config{Rings: d.workers.DropSamples(), Services: &d.services}
	if log := d.flows.log.Log; log != nil {
		c.Log = func(list []drops.Sample) { log.Drops(dropRecords(list)) }
	}
	d.drops = drops.New(c, time.Now())
}

// dropRecords returns the lines of the flow log about dropped packets.
func dropRecords(list []drops.Sample) []flowlog.Record {
	records := make([]flowlog.Record, len(list))
	for i := range list {
		s := &list[i]
		records[i] = flowlog.Record{Time: s.At, Client: s.Client, VIP: s.VIP, SNAT: s.SNAT, Backend: s.Backend,
			Service: s.Service, Reason: s.Reason.String(), Packets: s.Weight, Reply: s.Reply, Source: s.Source,
			Destination: s.Destination}
		if s.Protocol != 0 {
			records[i].Protocol = status.ProtocolName(s.Protocol)
		}
	}
	return records
}

// Drops implements status.Gateway.
func (d *Daemon) Drops(since time.Time) status.DropsView {
	v := d.drops.View(since, time.Now())
	v.KernelProgram = map[string]uint64{}
	for name, n := range d.steeringCounts() {
		if strings.HasSuffix(name, "_dropped") {
			v.KernelProgram[name] = n
		}
	}
	return v
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
