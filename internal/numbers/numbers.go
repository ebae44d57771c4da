// Package numbers prints lists of integers.
package numbers

import (
	"strconv"
	"strings"
)

// Join returns the numbers of a list, separated by separator.
func Join(list []int, separator string) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, separator)
}
