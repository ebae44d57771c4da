package announce

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/announce/view"
)

// Metrics exports a View.
type Metrics struct {
	View func() *view.View
}

var (
	descGateway = prometheus.NewDesc("sluice_announcer_gateway",
		"1 while this gateway's VIPs are announced, 0.5 while announced as leaving, 0.25 as the last resort, "+
			"else 0.", nil, nil)
	descSession = prometheus.NewDesc("sluice_announcer_session_up",
		"1 while a session is up, else 0.", []string{"speaker", "peer"}, nil)
	descBFD = prometheus.NewDesc("sluice_announcer_bfd_up",
		"1 while the session of BFD with a peer is up, else 0; of peers with a bfdProfile.", []string{"peer"}, nil)
	descRoutes = prometheus.NewDesc("sluice_announcer_routes",
		"Routes that are announced to a peer while its session is up.", []string{"speaker", "peer"}, nil)
	descVIPs = prometheus.NewDesc("sluice_announcer_vips",
		"VIPs that the gateway serves, by whether each is announced: announced, leaving, last_resort (any other "+
			"gateway is preferred), standby (another gateway of the link has it), waiting (for a session, "+
			"or to join the link), no.", []string{"state"}, nil)
	descProblems = prometheus.NewDesc("sluice_announcer_problems",
		"Problems of objects.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descGateway, descSession, descBFD, descRoutes, descVIPs, descProblems} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(to chan<- prometheus.Metric) {
	v := m.View()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descGateway, map[string]float64{Yes.String(): 1, Leaving.String(): 0.5,
		LastResort.String(): 0.25}[v.Gateway])
	for i := range v.Peers {
		p := &v.Peers[i]
		up := 0.0
		if p.Up {
			up = 1
		}
		gauge(descSession, up, p.Speaker, p.Name)
		if p.BFD != "" {
			up = 0
			if p.BFD == "up" {
				up = 1
			}
			gauge(descBFD, up, p.Name)
		}
		gauge(descRoutes, float64(p.Routes), p.Speaker, p.Name)
	}
	states := map[string]int{}
	for i := range v.VIPs {
		states[bestLine(v.VIPs[i].To).State]++
	}
	for _, state := range ranked {
		gauge(descVIPs, float64(states[state]), state)
	}
	gauge(descProblems, float64(len(v.Problems)))
}

// ranked are the states of lines, the best first.
var ranked = []string{view.Announced, view.Leaving, view.LastResort, view.Standby, view.Waiting, view.Not}

// bestLine returns the line with the best state.
func bestLine(lines []view.Line) view.Line {
	for _, state := range ranked {
		for i := range lines {
			if lines[i].State == state {
				return lines[i]
			}
		}
	}
	return view.Line{State: view.Not, Why: "no speaker announces it"}
}
