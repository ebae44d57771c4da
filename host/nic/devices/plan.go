package devices

import (
	"fmt"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable"
)

// maxSharedLinks is how many links of one worker poll can wait on.
const maxSharedLinks = 63

// MostWorkers leaves the places in the flow table that others than workers take: flows.Reader and
// explain.Explainer.
const MostWorkers = flowtable.MaxHandles - 2

// Place is the place of one socket: a link of a worker, for a queue of a port.
type Place struct{ Worker, Position, Queue int }

// Plan assigns queues to workers: worker w has the queues q of every
// interface with q mod workers = w, so that each worker can transmit on each.
type Plan struct {
	Workers int
	// Places has the places of each interface's sockets, in the order of the configuration, and
	// last the host link's, if there is one: each worker has one of its queues.
	Places [][]Place
}

// NewPlan makes the plan for devices in the order of the configuration.
func NewPlan(devices []Device, c *config.Configuration) (Plan, error) {
	workers, queues, err := divide(devices, c)
	if err != nil {
		return Plan{}, err
	}
	if c.HostLink.Enabled() {
		queues = append(queues, workers)
	}
	p := Plan{Workers: workers, Places: make([][]Place, len(queues))}
	links := make([]int, workers) // of each worker so far
	for port, n := range queues {
		for q := range n {
			w := q % workers
			p.Places[port] = append(p.Places[port], Place{Worker: w, Position: links[w], Queue: q})
			links[w]++
		}
	}
	return p, nil
}

// Links returns how many sockets a worker has.
func (p *Plan) Links(worker int) (n int) {
	for _, places := range p.Places {
		for _, at := range places {
			if at.Worker == worker {
				n++
			}
		}
	}
	return n
}

// Ports returns the port of each link of a worker, by position.
func (p *Plan) Ports(worker int) []int {
	ports := make([]int, p.Links(worker))
	for port, places := range p.Places {
		for _, at := range places {
			if at.Worker == worker {
				ports[at.Position] = port
			}
		}
	}
	return ports
}

// First returns the position of a port's first link at a worker.
func (p *Plan) First(port, worker int) int {
	for _, at := range p.Places[port] {
		if at.Worker == worker {
			return at.Position
		}
	}
	panic(fmt.Sprintf("devices: worker %d has no queue of port %d; NewPlan must give it one", worker, port))
}

// divide returns how many workers there are and how many queues of each device are served.
func divide(devices []Device, c *config.Configuration) (workers int, queues []int, err error) {
	queues = make([]int, len(devices))
	for i, d := range devices {
		queues[i] = d.Queues
		if want := int(c.Interfaces[i].Queues); want > 0 {
			if want > d.Queues {
				return 0, nil, fmt.Errorf("interface %s: queues is %d, but it has %d (`ethtool -L` sets them)", d.Name,
					want, d.Queues)
			}
			queues[i] = want
		}
		if workers == 0 || queues[i] < workers {
			workers = queues[i]
		}
	}
	if c.Workers > workers {
		return 0, nil,
			fmt.Errorf("workers is %d, but an interface has only %d queues and each worker needs one on each interface",
				c.Workers, workers)
	}
	if c.Workers > 0 {
		workers = c.Workers
	}
	if workers > MostWorkers {
		return 0, nil,
			fmt.Errorf("%d workers, one per queue of every interface, are more than the flow table has places for: "+
				"set workers to at most %d", workers, MostWorkers)
	}
	perWorker := 1 // the host link
	for _, q := range queues {
		perWorker += (q + workers - 1) / workers
	}
	if perWorker > maxSharedLinks {
		return 0, nil, fmt.Errorf("each of %d workers would have %d sockets, at most %d are possible: use more workers",
			workers, perWorker, maxSharedLinks)
	}
	return workers, queues, nil
}

// StartError returns the error with which the daemon would refuse this host's interfaces under a
// configuration that is valid otherwise; nil if it would take them. It reads only.
func StartError(c *config.Configuration) error {
	found, err := Find(c)
	if err != nil {
		return err
	}
	_, err = NewPlan(found.Devices, c)
	return err
}
