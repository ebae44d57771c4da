package status

import "time"

// SetWriteTimeout replaces the time in which a reader must accept a piece of an answer.
func (s *Server) SetWriteTimeout(d time.Duration) { s.writeTimeout = d }

// SetAnswerTimeouts replaces the time in which a reader must accept a whole answer, and the time
// that a request waits while others have not.
func (s *Server) SetAnswerTimeouts(answer, slot time.Duration) {
	s.answerTimeout, s.slotTimeout = answer, slot
}

// SetStall replaces the time in which the output of a capture must take a piece of it.
func (c *Client) SetStall(d time.Duration) { c.stall = d }
