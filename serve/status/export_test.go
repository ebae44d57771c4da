package status

import "time"

// SetWriteTimeout replaces the time in which a reader must accept a piece of an answer.
func (s *Server) SetWriteTimeout(d time.Duration) { s.writeTimeout = d }
