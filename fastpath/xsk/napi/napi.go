// Package napi sets how the kernel polls a network device (NAPI), and restores the previous
// settings. They belong to the device, not to a socket: they affect all traffic of the NIC and
// outlive the process, so they are changed only if the configuration sets them.
//
//	napi_defer_hard_irqs   number of polls without a packet after which interrupts are enabled again
//	gro_flush_timeout      nanoseconds until the next poll while interrupts are off
//	threaded               poll in kernel threads (napi/DEV-N), not in softirqs
//
// (Documentation/networking/napi.rst, Documentation/ABI/testing/sysfs-class-net.) If the first two
// are set, a timer polls a busy queue in batches; with SO_PREFER_BUSY_POLL as well, the worker
// polls it. An Original file stores the previous values, so that a process that is started after a
// crash restores the operator's values and not its predecessor's.
package napi

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Settings are the settings to apply to a device. The zero value changes none.
type Settings struct {
	DeferHardIRQs int           // polls; 0 leaves it as it is
	FlushTimeout  time.Duration // 0 leaves it as it is
	Threaded      Threaded
}

// Threaded selects whether a device is polled in kernel threads.
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

// wanted lists the attributes to write.
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

// Device is a device with changed settings; a nil Device has none. Only one goroutine may call its
// methods; the results of Values and Refused do not change.
type Device struct {
	name     string
	ifindex  int
	files    files
	original map[string]string // by attribute: the values to restore
	memory   *Original         // stores original
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

// Apply changes a device of the calling thread's network namespace. The device must be up and have
// its XDP program, because some drivers have no NAPI before. Device.Refused lists the settings that
// the kernel refused, which costs only speed. memory may be nil.
func Apply(name string, ifindex int, s Settings, memory *Original) (*Device, error) {
	if len(s.wanted()) == 0 {
		// A predecessor that crashed may have left settings that are no longer configured.
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
	for attribute, value := range remembered { // set by a predecessor, but not by s
		if _, found := d.original[attribute]; !found {
			d.original[attribute] = value
			_ = f.write(attribute, value)
		}
	}
	if err := memory.Set(name, ifindex, d.original); err != nil {
		d.refused = append(d.refused, fmt.Sprintf(
			"the previous settings of %s cannot be stored, so a crash would leave the new ones behind: %v", name, err,
		))
	}
	for _, w := range s.wanted() {
		if _, known := d.original[w.name]; !known {
			continue
		}
		if err := f.write(w.name, w.value); err != nil {
			d.refuse(w, err)
			if _, predecessors := remembered[w.name]; !predecessors {
				delete(d.original, w.name) // not changed
			}
			continue
		}
		got, err := f.read(w.name)
		if err != nil || got != w.value {
			d.refused = append(d.refused, fmt.Sprintf(
				"%s of %s is %q and not %s although the kernel accepted it: the driver has a limit, or another "+
					"program sets it (%v)", w.name, name, got, w.value, err,
			))
		}
		d.now[w.name] = got
	}
	return d
}

// refuse records the reason why a setting could not be applied.
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

// Values returns the settings that were read back, by attribute.
func (d *Device) Values() map[string]string {
	if d == nil {
		return nil
	}
	return d.now
}

// Refused returns a sentence for each setting that was not applied, with the reason.
func (d *Device) Refused() []string {
	if d == nil {
		return nil
	}
	return d.refused
}

// Restore restores the values from before Apply, or from before the Apply of a predecessor that
// crashed. It does nothing if the device no longer exists.
func (d *Device) Restore() error {
	if d == nil || d.files == nil {
		return nil
	}
	var errs []error
	for attribute, value := range d.original {
		err := d.files.write(attribute, value)
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("restore %s of %s to %s: %w", attribute, d.name, value, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, d.memory.Forget(d.name))
	}
	errs = append(errs, d.files.close())
	d.files = nil
	return errors.Join(errs...)
}
