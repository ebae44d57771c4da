package daemon

import (
	"context"
	"errors"
	"os"

	"sluice.dev/sluice/serve/status"
)

var _ status.Gateway = (*standby)(nil)

// errWaits is the answer to what only a gateway that forwards can do.
func (s *standby) errWaits() error { return errors.New(s.why() + ": ask that one") }

// Status implements status.Gateway. One that was to take over and is refused is as ready as it can
// be: a rolling update that starts it beside the other one ends that one then, which is what it
// waits for. One that cannot start is not: that would end the one that forwards for nothing.
func (s *standby) Status() status.StatusView {
	d, st := s.d, s.loop.Status()
	node, _ := d.config.Node() // checked at start
	v := status.StatusView{
		Node: node, PID: os.Getpid(), StartedAt: d.startedAt, Version: status.ThisBuild(),
		Config: d.configView(), Sources: d.sourceViews(st), Problems: status.ProblemViews(st.Problems),
		TakeOver: d.takenOver.Load(),
	}
	if v.Ready = d.asked.ready.Load(); !v.Ready {
		v.NotReady = []string{s.why()}
		if v.TakeOver != nil && v.TakeOver.Unable != "" {
			v.NotReady = append(v.NotReady, "this process cannot take over: "+v.TakeOver.Unable)
		}
	}
	return v
}

// Services implements status.Gateway.
func (s *standby) Services() []status.ServiceView { return nil }

// Backends implements status.Gateway.
func (s *standby) Backends() []status.BackendView { return nil }

// Flows implements status.Gateway.
func (s *standby) Flows(
	_ *status.FlowFilter, _ uint64, _ int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	return page, 0
}

// DeleteFlows implements status.Gateway.
func (s *standby) DeleteFlows(context.Context, *status.FlowFilter) (int, error) {
	return 0, s.errWaits()
}

// Drain implements status.Gateway.
func (s *standby) Drain(status.Endpoint, bool) (int, error) { return 0, s.errWaits() }

// Explain implements status.Gateway.
func (s *standby) Explain(*status.ExplainQuery) (status.ExplainView, error) {
	return status.ExplainView{}, s.errWaits()
}

// Stats implements status.Gateway.
func (s *standby) Stats() status.StatsView { return status.StatsView{Stalled: s.d.beats.Dead()} }

// SourcePorts implements status.Gateway.
func (s *standby) SourcePorts() []status.SourcePortsView { return nil }

// WaitApplied implements status.Gateway.
func (s *standby) WaitApplied(context.Context) error { return s.errWaits() }
