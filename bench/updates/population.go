package updates

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/bench/cluster"
)

// GatewayNode is the name of the Node that the gateway runs on.
const GatewayNode = gatewayNode

// Population is every object that is there at first, without the gateway's Node. Other
// measurements churn the same services.
func (c *Config) Population() []cluster.Object { return c.objects() }

// Change is the n-th change of a Service that is not probed: a slice whose endpoints all
// move, of services that take turns.
func (c *Config) Change(n int) *discoveryv1.EndpointSlice { return c.other(n) }
