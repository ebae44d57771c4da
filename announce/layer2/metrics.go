package layer2

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_announcer_layer2_"+name, help, append([]string{"interface"}, labels...), nil)
}

var (
	descUp       = desc("link_up", "1 while VIPs can be announced on a link, else 0.")
	descJoining  = desc("joining", "1 while this gateway joins a link, and takes no VIP, else 0.")
	descMembers  = desc("members", "Other gateways of a link that are alive.")
	descOwned    = desc("owned", "VIPs that this gateway has on a link.")
	descChanges  = desc("owner_changes_total", "VIPs that went from one gateway of a link to another one.")
	descSent     = desc("hellos_sent_total", "Hellos sent.")
	descReceived = desc("hellos_received_total", "Hellos of other gateways that were used.")
	descRefused  = desc("hellos_refused_total", "Hellos that were not used, by reason: forged (by none of the keys), "+
		"version, replayed, unproven (perhaps recorded: the first ones of a joining gateway), own, same_name, full.",
		"reason")
	descAnswers   = desc("answers_total", "Answers to requests for a VIP.", "family")
	descLimited   = desc("answers_limited_total", "Requests for a VIP that were not answered: too many.", "family")
	descAnnounced = desc("announcements_total", "VIPs announced to all hosts; each several times.", "family")
	descClaims    = desc("conflicts_total", "Claims of others for a VIP of this gateway, by whom: member (while it "+
		"moves), other (two hosts have the address).", "by")
	descFailed = desc("send_errors_total", "Frames that could not be sent.")
)

var descs = []*prometheus.Desc{descUp, descJoining, descMembers, descOwned, descChanges, descSent, descReceived,
	descRefused, descAnswers, descLimited, descAnnounced, descClaims, descFailed}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Speaker) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		l.mu.Lock()
		l.collect(to)
		l.mu.Unlock()
	}
}

func (l *link) collect(to chan<- prometheus.Metric) {
	metric := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, append([]string{l.name}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, value int) { metric(d, prometheus.GaugeValue, float64(value)) }
	total := func(d *prometheus.Desc, value uint64, labels ...string) {
		metric(d, prometheus.CounterValue, float64(value), labels...)
	}
	up, joining, alive, owned := 0, 0, 0, 0
	if l.sockets != nil {
		up = 1
	}
	if l.members.Joining() {
		joining = 1
	}
	for _, m := range l.members.List() {
		if m.Alive {
			alive++
		}
	}
	for _, w := range l.vips {
		if l.members.Owns(w.VIP) && l.sockets != nil {
			owned++
		}
	}
	gauge(descUp, up)
	gauge(descJoining, joining)
	gauge(descMembers, alive)
	gauge(descOwned, owned)
	total(descChanges, l.members.Changes())
	total(descSent, l.count.sent)
	total(descReceived, l.count.received)
	for _, reason := range reasons {
		total(descRefused, l.count.refused[reason], string(reason))
	}
	for i, name := range [...]string{"ipv4", "ipv6"} {
		total(descAnswers, l.count.answers[i], name)
		total(descLimited, l.count.limited[i], name)
		total(descAnnounced, l.count.announcements[i], name)
	}
	for _, by := range [...]string{byMember, byOther} {
		total(descClaims, l.count.claims[by], by)
	}
	total(descFailed, l.count.failed)
}
