// Package stateless sends packets that know when they were sent, and receives
// them: throughput, loss, order, consistency of flows, latency.
package stateless
