package hostlink

import "fmt"

// Delete deletes the pair that a process left, with its routes, neighbours, programs and sysctls,
// and reports whether it was there. It fails with ErrInUse while a process has the pair, and with
// ErrForeign for interfaces that have its names and are not a pair of Ensure's.
func Delete(name, kernelName string) (deleted bool, err error) {
	l, err := takeLock(name)
	if err != nil {
		return false, fmt.Errorf("host link %s: %w", name, err)
	}
	defer l.release()
	user, kern, err := ends(name, kernelName)
	if err != nil || user == nil && kern == nil {
		return false, err
	}
	if err := remove(name); err != nil {
		return false, fmt.Errorf("host link %s: %w", name, explain(err))
	}
	return true, nil
}
