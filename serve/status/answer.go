package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// An answer that is one value is in memory until the client has read it: tens of megabytes for the
// backends of a large cluster. So each kind of request has answersAtOnce answers in memory at most;
// the next waits for slotTimeout and is then refused. An answer counts while it is made, and also
// while it is written if it has more than smallAnswer bytes, so that nobody can keep others from a
// short one.
const (
	answersAtOnce = 2
	slotTimeout   = 5 * time.Second
	smallAnswer   = pieceBytes
)

// badRequest is an error in the parameters of a request.
type badRequest struct{ error }

// answers returns a handler of a kind of request whose answer is one value.
func (s *Server) answers(value func(*http.Request) (any, error)) http.HandlerFunc {
	slots := make(chan struct{}, answersAtOnce)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
		case <-r.Context().Done():
			return
		case <-time.After(s.slotTimeout):
			s.fail(w, http.StatusServiceUnavailable, fmt.Errorf("%d answers to %s are being made, or are not "+
				"read yet, and the daemon has no memory for more: try again", answersAtOnce, r.URL.Path))
			return
		}
		free := sync.OnceFunc(func() { <-slots })
		defer free() // also after a panic
		body, err := encode(value, r)
		if len(body) <= smallAnswer {
			free()
		}
		var bad badRequest
		switch {
		case errors.As(err, &bad):
			s.fail(w, http.StatusBadRequest, bad.error)
		case err != nil:
			s.fail(w, http.StatusInternalServerError, err)
		default:
			w.(*timedWriter).until = time.Now().Add(s.answerTimeout)
			s.write(w, body)
		}
	}
}

func encode(value func(*http.Request) (any, error), r *http.Request) ([]byte, error) {
	v, err := value(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// reply answers with a short value.
func (s *Server) reply(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.fail(w, http.StatusInternalServerError, err)
		return
	}
	s.write(w, body)
}

func (s *Server) write(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(body)
	if err == nil {
		_, err = w.Write([]byte{'\n'})
	}
	if err != nil {
		s.log.Debug("status client closed the connection", "error", err)
	}
}

type errorBody struct {
	Error string `json:"error"`
}

func (s *Server) fail(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if encodeErr := json.NewEncoder(w).Encode(errorBody{err.Error()}); encodeErr != nil {
		s.log.Debug("status client closed the connection", "error", encodeErr)
	}
}
