// Package drops shows which clients and Services dropped packets belong to. The workers sample
// their drops (fastpath/sample.go); the weights of the samples add up to the counters.
//
//	worker ─► capture.Ring ─┐  snapshot        ┌─► flow log: a few lines a second
//	worker ─► capture.Ring ─┴─► Watch.Drain ───┤
//	                                           └─► history of 10 minutes ─► `sluice drops`
//
// Drain finds the client and the Service of each sample, by its flow or by the frontend to or from
// which the packet was. Packets that the kernel program drops never reach a worker, and have no
// samples.
package drops
