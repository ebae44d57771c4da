package hostlink

import "fmt"

// Delete deletes the pair of a process that has ended, with its routes, neighbours, programs and
// sysctls, and reports whether it existed. It returns ErrInUse while a process has the pair, and
// ErrForeign if interfaces with these names are not such a pair.
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
