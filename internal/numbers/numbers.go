// Package numbers prints lists of whole numbers.
package numbers

import (
	"strconv"
	"strings"
)

// Join prints a list, with separator between two elements.
func Join(list []int, separator string) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, separator)
}
