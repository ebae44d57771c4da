package xsk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Options are the settings of a socket that the kernel may refuse. A refused setting costs only
// speed, so the socket is opened without it and reports it in Refused.
type Options struct {
	// TxBudget is the maximum number of packets that one system call sends in copy mode; 0 in
	// zero-copy.
	TxBudget int
	// SendBuffer is the maximum total size of packets in flight in copy mode, in bytes.
	SendBuffer int
	// BusyPoll is 0 if the worker does not poll the device itself.
	BusyPoll       time.Duration
	BusyPollBudget int
	// Refused has a sentence for each option that was requested but is not set, with the reason and
	// a remedy. It is empty if all are set.
	Refused []string
}

const (
	// minTxBudget is the number of packets that a call sends without the option, and the option's
	// minimum (TX_BATCH_SIZE, net/xdp/xsk.c).
	minTxBudget = 32
	// defaultBusyPollBudget is the number of packets that one poll takes after an interrupt
	// (NAPI_POLL_WEIGHT).
	defaultBusyPollBudget = 64
	maxBusyPollBudget     = 1<<16 - 1
	// kernelTxBudget is the option's name in messages.
	kernelTxBudget = "XDP_MAX_TX_SKB_BUDGET"
)

// setter sets a socket option of four bytes; tests replace it with one that returns an error.
type setter func(fd, level, option, value int) error

// checkOptions fills in defaults and rejects values that no kernel accepts.
func (c *Config) checkOptions() error {
	if c.TxBudget == 0 {
		c.TxBudget = max(minTxBudget, int(c.TxSize))
	}
	if c.TxBudget < minTxBudget || c.TxBudget > max(minTxBudget, int(c.TxSize)) {
		return fmt.Errorf("TxBudget %d: the kernel accepts %d to TxSize (%d)", c.TxBudget, minTxBudget, c.TxSize)
	}
	if c.BusyPoll < 0 || c.BusyPoll%time.Microsecond != 0 {
		return fmt.Errorf("BusyPoll %s: not a whole number of microseconds", c.BusyPoll)
	}
	if c.BusyPollBudget == 0 {
		c.BusyPollBudget = defaultBusyPollBudget
	}
	if c.BusyPollBudget < 1 || c.BusyPollBudget > maxBusyPollBudget {
		return fmt.Errorf("BusyPollBudget %d: the kernel accepts 1 to %d", c.BusyPollBudget, maxBusyPollBudget)
	}
	if c.set == nil {
		c.set = unix.SetsockoptInt
	}
	return nil
}

// tune sets the options of a bound socket.
func (s *Socket) tune(c *Config) {
	s.setTxBudget(c)
	s.setBusyPoll(c)
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		s.options.SendBuffer = n
	}
}

// setTxBudget lets one call send more than 32 packets. The value cannot be read back (getsockopt
// has no such option), so Options has the value of a successful call.
func (s *Socket) setTxBudget(c *Config) {
	if !s.copyMode {
		return // the device sends without system calls
	}
	s.options.TxBudget = minTxBudget
	if c.TxBudget == minTxBudget {
		return
	}
	err := c.set(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, c.TxBudget)
	switch {
	case err == nil:
		s.options.TxBudget = c.TxBudget
	case errors.Is(err, unix.ENOPROTOOPT):
		s.refused(
			"a system call sends %d packets, not %d: this kernel has no %s (Linux 6.17)", minTxBudget, c.TxBudget,
			kernelTxBudget,
		)
	default:
		s.refused("a system call sends %d packets, not %d: %s: %v", minTxBudget, c.TxBudget, kernelTxBudget, err)
	}
}

// setBusyPoll makes the worker's system calls poll the device (napi_busy_loop, net/core/dev.c). It
// sets all three options or none: with some of them, interrupts and polls would compete for the
// queue.
func (s *Socket) setBusyPoll(c *Config) {
	if c.BusyPoll == 0 {
		return
	}
	options := []struct {
		name      string
		no, value int
	}{
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, int(c.BusyPoll / time.Microsecond)},
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, c.BusyPollBudget},
	}
	for i, o := range options {
		err := c.set(s.fd, unix.SOL_SOCKET, o.no, o.value)
		if err == nil {
			continue
		}
		for _, done := range options[:i] {
			_ = c.set(s.fd, unix.SOL_SOCKET, done.no, 0) // all or none
		}
		switch {
		case errors.Is(err, unix.ENOPROTOOPT):
			s.refused("no busy polling: this kernel has no %s (Linux 5.11, CONFIG_NET_RX_BUSY_POLL)", o.name)
		case errors.Is(err, unix.EPERM):
			s.refused("no busy polling: %s %d needs CAP_NET_ADMIN", o.name, o.value)
		default:
			s.refused("no busy polling: %s %d: %v", o.name, o.value, err)
		}
		return
	}
	s.options.BusyPoll, s.options.BusyPollBudget = c.BusyPoll, c.BusyPollBudget
	s.busyPoll = true
}

func (s *Socket) refused(format string, args ...any) {
	s.options.Refused = append(s.options.Refused, fmt.Sprintf(format, args...))
}

// Options returns the current options. Safe for any goroutine.
//
// A device can be polled only after its first packet, which gives the socket the NAPI ID
// (sk_mark_napi_id_once_xdp). If a driver registers a queue before its NAPI has an ID, as veth does
// in Linux 6.18, it can never be polled.
func (s *Socket) Options() Options {
	s.umem.mu.Lock() // against Close
	defer s.umem.mu.Unlock()
	o := s.options
	o.Refused = append([]string(nil), o.Refused...)
	if o.BusyPoll == 0 || s.fd < 0 {
		return o
	}
	if id, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID); err == nil && id == 0 {
		o.Refused = append(
			o.Refused,
			"busy polling has no effect yet: no packet with the NAPI ID of its queue has arrived; if this "+
				"stays with traffic, the driver (veth is one) cannot be polled by a socket: set busyPoll to 0s",
		)
	}
	return o
}
