package pipeline

import "strconv"

const (
	manyServices    = 10_000
	serviceBackends = 10
	// oneServiceBackends is one backend on each node, and so as many next hops as nodes.
	oneServiceBackends = nodes
	servicesTarget     = 1.1
	servicesFewFlows   = 100_000
)

// services compares ten thousand Services of ten backends each with one Service, at equal numbers
// of flows and, so that only Services differ, of next hops: with one backend on each node, and with
// as many backends as the ten thousand have together. A difference to the first that is absent from
// the second is the cost of backends: of their counters.
func (r *runner) services() error {
	for _, flows := range []int{servicesFewFlows, liveFlows} {
		if err := r.servicesAt(flows); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) servicesAt(flows int) error {
	r.say("services: opening %d flows, three times", flows)
	many, err := r.populated(worldConfig{services: manyServices, backends: serviceBackends, capacity: roomFor(flows)},
		flows)
	if err != nil {
		return err
	}
	defer many.w.close()
	for _, backends := range []int{oneServiceBackends, manyServices * serviceBackends} {
		if err := r.oneService(many, flows, backends); err != nil {
			return err
		}
	}
	return nil
}

// oneService compares many Services with one that has the given number of backends.
func (r *runner) oneService(many *gate, flows, backends int) error {
	one, err := r.populated(worldConfig{services: 1, backends: backends, capacity: roomFor(flows)}, flows)
	if err != nil {
		return err
	}
	defer one.w.close()
	params := map[string]string{"scenario": "services", "family": "ipv4", "flows": strconv.Itoa(flows)}
	target := servicesTarget
	if backends != oneServiceBackends { // explains the other ratio, and has no target
		params["backends"] = strconv.Itoa(backends)
		target = 0
	}
	return r.inTurns(pair{
		params: params,
		name:   "services", base: "1", other: strconv.Itoa(manyServices), better: "lower", target: target,
		baseCost: r.lookups(one), otherCost: r.lookups(many),
	})
}
