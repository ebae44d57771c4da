// Package napi sets how the kernel polls a network device (NAPI), and puts back what was
// set before. The settings are the device's, not a socket's: they change what all
// traffic of the NIC meets, outlive the process, and so are touched only where
// the configuration sets them.
//
//	napi_defer_hard_irqs   after how many polls without a packet interrupts are on again
//	gro_flush_timeout      nanoseconds until the next poll while they are off
//	threaded               poll in threads of the kernel (napi/DEV-N), not in softirqs
//
// (Documentation/networking/napi.rst, Documentation/ABI/testing/sysfs-class-net.) With the first
// two a busy queue is polled by a timer, in batches, and with SO_PREFER_BUSY_POLL by the worker
// itself. An Original file remembers what was there, so that a process that is started after a
// crash puts back the operator's values and not its own.
package napi

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Settings are what a device shall have. The zero value leaves all as it is.
type Settings struct {
	DeferHardIRQs int           // polls; 0 leaves it as it is
	FlushTimeout  time.Duration // 0 leaves it as it is
	Threaded      Threaded
}

// Threaded is where a device is polled.
type Threaded uint8

const (
	Keep Threaded = iota // as it is
	On
	Off
)

// The names of the settings, files in /sys/class/net/DEV.
const (
	attrDefer    = "napi_defer_hard_irqs"
	attrTimeout  = "gro_flush_timeout"
	attrThreaded = "threaded"
)

type pair struct{ name, value string }

// wanted lists what is to be written.
func (s *Settings) wanted() (list []pair) {
	if s.DeferHardIRQs != 0 {
		list = append(list, pair{attrDefer, strconv.Itoa(s.DeferHardIRQs)})
	}
	if s.FlushTimeout != 0 {
		list = append(list, pair{attrTimeout, strconv.FormatInt(int64(s.FlushTimeout), 10)})
	}
	switch s.Threaded {
	case On:
		list = append(list, pair{attrThreaded, "1"})
	case Off:
		list = append(list, pair{attrThreaded, "0"})
	}
	return list
}

// Device is a device whose settings were changed; nil is one whose were not. Its methods
// are for one goroutine, but Values and Refused do not change.
type Device struct {
	name     string
	ifindex  int
	files    files
	original map[string]string // by attribute: what to put back
	memory   *Original
	now      map[string]string // read back
	refused  []string
}

// files are the attributes of one device.
type files interface {
	read(attribute string) (string, error)
	write(attribute, value string) error
	close() error
}

// Read returns the settings of a device of the calling thread's network namespace, by
// attribute.
func Read(name string, ifindex int) (map[string]string, error) {
	f, err := openDevice(name, ifindex)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, a := range []string{attrDefer, attrTimeout, attrThreaded} {
		if values[a], err = f.read(a); err != nil {
			return nil, errors.Join(fmt.Errorf("%s of %s: %w", a, name, err), f.close())
		}
	}
	return values, f.close()
}

// Apply changes a device of the calling thread's network namespace: one that is up and has its XDP
// program, for some drivers have no NAPI before. What the kernel refuses is told by Refused and
// costs speed only. memory may be nil.
func Apply(name string, ifindex int, s Settings, memory *Original) (*Device, error) {
	if len(s.wanted()) == 0 {
		// A predecessor that died may have left settings that are not wanted any more.
		values, found := memory.Get(name, ifindex)
		if !found {
			return &Device{name: name}, nil
		}
		f, err := openDevice(name, ifindex)
		if err != nil {
			return nil, err
		}
		d := &Device{name: name, ifindex: ifindex, files: f, original: values, memory: memory}
		return &Device{name: name}, d.Restore()
	}
	f, err := openDevice(name, ifindex)
	if err != nil {
		return nil, err
	}
	return apply(f, name, ifindex, s, memory), nil
}

func apply(f files, name string, ifindex int, s Settings, memory *Original) *Device {
	d := &Device{
		name: name, ifindex: ifindex, files: f, memory: memory, original: map[string]string{}, now: map[string]string{},
	}
	remembered, _ := memory.Get(name, ifindex)
	for _, w := range s.wanted() {
		before, err := f.read(w.name)
		if err != nil {
			d.refuse(w, err)
			continue
		}
		if old, found := remembered[w.name]; found {
			before = old
		}
		d.original[w.name] = before
	}
	for attribute, value := range remembered { // set by a predecessor, not wanted by us
		if _, found := d.original[attribute]; !found {
			d.original[attribute] = value
			_ = f.write(attribute, value)
		}
	}
	if err := memory.Set(name, ifindex, d.original); err != nil {
		d.refused = append(d.refused, fmt.Sprintf(
			"what %s had before cannot be remembered, so a crash would leave our settings behind: %v", name, err,
		))
	}
	for _, w := range s.wanted() {
		if _, known := d.original[w.name]; !known {
			continue
		}
		if err := f.write(w.name, w.value); err != nil {
			d.refuse(w, err)
			if _, predecessors := remembered[w.name]; !predecessors {
				delete(d.original, w.name) // it never changed
			}
			continue
		}
		got, err := f.read(w.name)
		if err != nil || got != w.value {
			d.refused = append(d.refused, fmt.Sprintf(
				"%s of %s is %q and not %s although the kernel took it: the driver has a limit, or somebody else "+
					"sets it (%v)", w.name, name, got, w.value, err,
			))
		}
		d.now[w.name] = got
	}
	return d
}

// refuse records why a setting is not as wanted.
func (d *Device) refuse(w pair, err error) {
	var why string
	switch {
	case errors.Is(err, unix.ENOENT):
		why = "this kernel does not have it (Linux 5.12)"
	case errors.Is(err, unix.EROFS):
		why = "/sys is read-only here: mount it writable, or set it on the node"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		why = "CAP_NET_ADMIN in the namespace of the device is needed"
	case errors.Is(err, unix.EOPNOTSUPP):
		why = "the driver has no NAPI to do it with"
	default:
		why = err.Error()
	}
	d.refused = append(d.refused, fmt.Sprintf("%s of %s cannot be set to %s: %s", w.name, d.name, w.value, why))
}

// Values are the settings as they were read back, by attribute.
func (d *Device) Values() map[string]string {
	if d == nil {
		return nil
	}
	return d.now
}

// Refused returns, a sentence each, what is not as the settings want it, and why.
func (d *Device) Refused() []string {
	if d == nil {
		return nil
	}
	return d.refused
}

// Restore puts back what was there before Apply, or before the Apply of a predecessor that
// died. A device that is gone has nothing to be put back.
func (d *Device) Restore() error {
	if d == nil || d.files == nil {
		return nil
	}
	var errs []error
	for attribute, value := range d.original {
		err := d.files.write(attribute, value)
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("put %s of %s back to %s: %w", attribute, d.name, value, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, d.memory.Forget(d.name))
	}
	errs = append(errs, d.files.close())
	d.files = nil
	return errors.Join(errs...)
}
