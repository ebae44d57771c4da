package config

import "time"

func (k *check) sockets(c *Configuration) {
	s := c.Sockets
	k.duration("sockets.busyPoll", s.BusyPoll, 0, time.Millisecond)
	if s.BusyPoll.D()%time.Microsecond != 0 {
		k.fail("sockets.busyPoll", "is %s, the kernel needs whole microseconds", s.BusyPoll)
	}
	k.between("sockets.busyPollBudget", s.BusyPollBudget, 8, 1024)
}

func (k *check) napi(at string, n NAPI) {
	k.between(at+".deferHardIRQs", n.DeferHardIRQs, 0, 1000)
	k.duration(at+".groFlushTimeout", n.GROFlushTimeout, 0, 10*time.Millisecond)
	if n.DeferHardIRQs != 0 && n.GROFlushTimeout == 0 {
		k.fail(at+".groFlushTimeout",
			"is 0s with deferHardIRQs %d: interrupts are deferred only if both are set; write a time such as 50us",
			n.DeferHardIRQs)
	}
	oneOf(k, at+".threaded", n.Threaded, ThreadedKeep, ThreadedOn, ThreadedOff)
}
