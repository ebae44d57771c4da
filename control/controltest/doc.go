// Package controltest has fixtures for tests of the packages of control: small and large clusters
// of Services, a kernel program that records calls, and owners of backend numbers that notice when
// one number has two meanings. Only tests import it.
package controltest
