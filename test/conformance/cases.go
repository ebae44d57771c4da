package conformance

// all is every case.
func all() []*Case {
	b := &cases{}
	for _, f := range []func(){
		b.serviceTypes, b.servicePorts, b.serviceAddresses, b.sourceRanges, b.policies, b.ignoredByProxies,
		b.slices, b.endpointAddresses, b.conditions, b.hints, b.endpointChanges, b.lastAndFirstEndpoint,
		b.serviceChanges,
		b.affinity, b.choosing, b.hairpin, b.disagreements, b.wire, b.affinityTime, b.turns, b.configurations, b.health,
	} {
		f()
	}
	return b.cases
}
