package announce

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"sluice.dev/sluice/announce/kinds"
	"sluice.dev/sluice/announce/view"
)

// reports reports problems of objects and announcements of Services, each once.
type reports struct {
	log      *slog.Logger
	report   func(p kinds.Problem, normal bool) // Config.Report
	speakers []Speaker

	problems map[kinds.Problem]bool
	states   map[netip.Addr]string // by VIP: the last reported state
	stale    bool                  // any VIP's state may differ from states
}

// ofProblems reports each problem once, and again if it disappears and comes back.
func (r *reports) ofProblems(problems []kinds.Problem) {
	reported := map[kinds.Problem]bool{}
	for _, p := range problems {
		if reported[p] = true; !r.problems[p] {
			r.log.Warn("an object has a problem", "object", p.About.String(), "reason", p.Reason, "problem", p.Note)
			if r.report != nil {
				r.report(p, false)
			}
		}
	}
	r.problems = reported
}

// ofVIPs reports to Services when announcements of their VIPs begin and end. uids are the UIDs of
// Services by namespace/name. Do not call it while the gateway as a whole is not announced: the
// log, the status and metrics show that.
func (r *reports) ofVIPs(node string, w *World, uids map[string]string) {
	if r.report == nil {
		return
	}
	if r.states == nil {
		r.states = map[netip.Addr]string{}
	}
	if !r.stale {
		for _, vip := range w.Changed {
			if s := w.Find(vip); s != nil {
				r.ofVIP(node, s, uids)
			} else {
				delete(r.states, vip)
			}
		}
		return
	}
	r.stale = false
	for vip := range r.states {
		if w.Find(vip) == nil {
			delete(r.states, vip)
		}
	}
	for _, s := range w.VIPs {
		r.ofVIP(node, s, uids)
	}
}

// ofVIP reports the state of a VIP to its Services if it has changed.
func (r *reports) ofVIP(node string, vip *VIPVerdict, uids map[string]string) {
	line := bestLine(linesOf(r.speakers, vip.VIP))
	before, known := r.states[vip.VIP]
	if line.State == view.Waiting && known {
		return // a session that flaps is reported by its peer
	}
	r.states[vip.VIP] = line.State
	// At layer 2 only the owner of the VIP reports.
	if line.State == before || line.State == view.Waiting || line.State == view.Standby {
		return
	}
	p := kinds.Problem{Reason: "Announced", Note: fmt.Sprintf("node %s announces %v as %s to %s", node, vip.VIP,
		line.What, line.To)}
	if line.State == view.Not {
		p = kinds.Problem{Reason: "NotAnnounced", Note: fmt.Sprintf("node %s does not announce %v: %s", node, vip.VIP,
			line.Why)}
	} else if line.State == view.LastResort {
		p.Reason, p.Note = "LastResort", p.Note+", as the last resort: "+line.Why
	} else if line.State == view.Leaving {
		p.Reason, p.Note = "Leaving", p.Note+", as leaving: "+line.Why
	}
	for _, service := range vip.Services {
		namespace, name, _ := strings.Cut(service, "/")
		p.About = kinds.Ref{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name, UID: uids[service]}
		r.report(p, line.State != view.Not)
	}
}

// linesOf returns to whom all speakers announce a VIP, or why they do not.
func linesOf(speakers []Speaker, vip netip.Addr) []view.Line {
	list := []view.Line{}
	for _, s := range speakers {
		list = append(list, s.Lines(vip)...)
	}
	return list
}
