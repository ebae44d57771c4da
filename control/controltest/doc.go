// Package controltest is what tests of the packages of control share: small and large clusters
// of Services, a kernel program that remembers what it was asked, and owners of backend numbers
// that notice when one has two meanings. Only tests import it.
package controltest
