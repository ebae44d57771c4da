package neigh

import (
	"sluice.dev/sluice/fastpath/nexthop"
)

var unreachable = nexthop.Route{Hop: nexthop.NoRoute}
