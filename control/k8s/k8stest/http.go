package k8stest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func gvk(k *kind) schema.GroupVersionKind { return schema.FromAPIVersionAndKind(k.apiVersion, k.name) }

// typesUID is the same for one object each time.
func typesUID(kind string, m *metav1.ObjectMeta) types.UID {
	return types.UID("uid-" + kind + "-" + m.Namespace + "-" + m.Name)
}

// selector is the restriction of a list or watch.
type selector struct {
	labels labels.Selector
	fields fields.Selector
}

func (sel *selector) match(o *object) bool {
	return o != nil && sel.labels.Matches(o.labels) && sel.fields.Matches(o.fields)
}

// ServeHTTP answers as an API server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	group, rest := "", strings.TrimPrefix(r.URL.Path, "/api/v1/")
	if rest == r.URL.Path {
		parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/apis/"), "/", 3)
		if len(parts) < 3 {
			fail(w, http.StatusNotFound, "NotFound", "no such path "+r.URL.Path)
			return
		}
		group, rest = parts[0], parts[2]
	}
	parts, namespace := strings.Split(rest, "/"), ""
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	verb := verbOf(r, len(parts) > 1)
	if !s.allowed(Request{verb, group, parts[0]}) {
		fail(w, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s of %s in group %q is forbidden", verb, parts[0],
			group))
		return
	}
	k := s.kinds[parts[0]]
	switch {
	case group == "events.k8s.io":
		s.event(w, r, verb)
	case k == nil:
		fail(w, http.StatusNotFound, "NotFound", "no resource "+parts[0])
	case verb == "get":
		s.get(w, k, namespace+"/"+parts[1])
	default:
		s.listOrWatch(w, r, k, verb)
	}
}

func verbOf(r *http.Request, named bool) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.Method == http.MethodPatch:
		return "patch"
	case named:
		return "get"
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		return "watch"
	}
	return "list"
}

func (s *Server) allowed(q Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.requests, q) {
		s.requests = append(s.requests, q)
	}
	return s.Allow == nil || s.Allow(q.Verb, q.Group, q.Resource)
}

func (s *Server) get(w http.ResponseWriter, k *kind, key string) {
	s.mu.Lock()
	o := k.objects[key]
	s.mu.Unlock()
	if o == nil {
		fail(w, http.StatusNotFound, "NotFound", key+" not found")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(o.json) // the client may be gone
}

func (s *Server) listOrWatch(w http.ResponseWriter, r *http.Request, k *kind, verb string) {
	q := r.URL.Query()
	var sel selector
	var err error
	if sel.labels, err = labels.Parse(q.Get("labelSelector")); err == nil {
		sel.fields, err = fields.ParseSelector(q.Get("fieldSelector"))
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	if verb == "list" {
		s.list(w, r, k, &sel)
		return
	}
	s.watch(w, r, k, &sel)
}

// list answers all objects at once, or limit objects. A page after the first is refused if anything
// changed since: it would belong to another list.
func (s *Server) list(w http.ResponseWriter, r *http.Request, k *kind, sel *selector) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit")) // absent: no limit
	var at uint64
	var offset int
	if token := r.URL.Query().Get("continue"); token != "" {
		if _, err := fmt.Sscanf(token, "%d-%d", &at, &offset); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", "continue token "+token)
			return
		}
	}
	s.mu.Lock()
	version, objects := s.version, k.matching(sel)
	if s.Shuffle != nil && limit == 0 {
		s.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
	}
	s.mu.Unlock()
	if offset > 0 && at != version {
		fail(w, http.StatusGone, "Expired", "the continue token is too old")
		return
	}
	objects = objects[min(offset, len(objects)):]
	next := ""
	if limit > 0 && len(objects) > limit {
		objects, next = objects[:limit], fmt.Sprintf("%d-%d", version, offset+limit)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"%s","metadata":{"resourceVersion":"%d","continue":%q},"items":[`,
		k.name, k.apiVersion, version, next)
	for i, o := range objects {
		s.pace(w, k, i, len(objects))
		if i > 0 {
			_, _ = w.Write([]byte{','})
		}
		_, _ = w.Write(o.json)
	}
	s.pace(w, k, len(objects), len(objects))
	_, _ = w.Write([]byte("]}"))
	if next == "" {
		s.listed(k)
	}
}

// pace lets a test stop a list in its middle.
func (s *Server) pace(w http.ResponseWriter, k *kind, i, n int) {
	if s.Pace != nil {
		w.(http.Flusher).Flush()
		s.Pace(k.resource, i, n)
	}
}

func (s *Server) listed(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[k.resource]++
}

// matching lists the objects that a selector selects, by key.
func (k *kind) matching(sel *selector) (list []*object) {
	for _, key := range slices.Sorted(maps.Keys(k.objects)) {
		if o := k.objects[key]; sel.match(o) {
			list = append(list, o)
		}
	}
	return list
}

// watch sends events from a version on, after all objects if the request has that option.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k *kind, sel *selector) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	if initial && s.PlainLists {
		fail(w, http.StatusUnprocessableEntity, "Invalid",
			"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		return
	}
	from, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64) // absent: 0
	s.mu.Lock()
	epoch, version, oldest := k.epoch, s.version, k.oldest
	var objects []*object
	if initial {
		objects, from = k.matching(sel), version
		if s.Shuffle != nil {
			s.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		}
	}
	at, _ := slices.BinarySearchFunc(k.log, from+1,
		func(e event, v uint64) int { return int(int64(e.version) - int64(v)) })
	s.mu.Unlock()
	if from < oldest {
		fail(w, http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d (%d)", from, oldest))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := &stream{w: w, flush: w.(http.Flusher)}
	for i, o := range objects {
		s.pace(w, k, i, len(objects))
		out.send("ADDED", o.json)
	}
	if initial {
		s.pace(w, k, len(objects), len(objects))
		out.send("BOOKMARK", fmt.Appendf(nil,
			`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d","annotations":{%q:"true"}}}`,
			k.name, k.apiVersion, version, metav1.InitialEventsAnnotationKey))
	}
	out.flush.Flush()
	if initial {
		s.listed(k)
	}
	s.follow(r, k, sel, out, at, epoch)
}

// follow sends what happens until the client goes or the watch expires.
func (s *Server) follow(r *http.Request, k *kind, sel *selector, out *stream, at, epoch int) {
	for {
		s.mu.Lock()
		expired, grown := k.epoch != epoch, k.grown
		var news []event
		if !expired {
			news = k.log[at:]
			at = len(k.log)
		}
		s.mu.Unlock()
		if expired {
			out.send("ERROR",
				[]byte(
					`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`,
				))
			out.flush.Flush()
			return
		}
		for i := range news {
			news[i].send(sel, out)
		}
		if len(news) > 0 {
			out.flush.Flush()
		}
		select {
		case <-grown:
		case <-r.Context().Done():
			return
		}
	}
}

// send sends an event as the selector sees it: if the object no longer matches, it is a deletion.
func (e *event) send(sel *selector, out *stream) {
	if e.forced {
		out.send(e.typ, e.now.json)
		return
	}
	was, is := sel.match(e.before), e.typ != "DELETED" && sel.match(e.now)
	switch {
	case !was && is:
		out.send("ADDED", e.now.json)
	case was && is:
		out.send("MODIFIED", e.now.json)
	case was:
		out.send("DELETED", e.now.json)
	}
}

// stream writes events, each on a line.
type stream struct {
	w     http.ResponseWriter
	flush http.Flusher
	line  bytes.Buffer
}

func (o *stream) send(typ string, object []byte) {
	o.line.Reset()
	fmt.Fprintf(&o.line, `{"type":%q,"object":%s}`+"\n", typ, object)
	_, _ = o.w.Write(o.line.Bytes()) // the watcher may be gone
}

// event takes an Event.
func (s *Server) event(w http.ResponseWriter, r *http.Request, verb string) {
	var e eventsv1.Event
	if verb == "create" {
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	if verb == "create" && !s.accepts(w, &e) {
		return
	}
	s.mu.Lock()
	if verb == "create" {
		s.events = append(s.events, &e)
	} else {
		s.patches++
	}
	s.mu.Unlock()
	e.SetGroupVersionKind(eventsv1.SchemeGroupVersion.WithKind("Event"))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&e) // the client may be gone
}

// accepts refuses Events that a real server refuses by their names, and Events that the test wants
// refused.
func (s *Server) accepts(w http.ResponseWriter, e *eventsv1.Event) bool {
	if errs := validation.IsDNS1123Subdomain(e.Name); len(errs) > 0 {
		fail(w, http.StatusUnprocessableEntity, "Invalid", fmt.Sprintf("metadata.name: %q: %v", e.Name, errs))
		return false
	}
	if s.Refuse != nil {
		if why := s.Refuse(e); why != "" {
			fail(w, http.StatusForbidden, "Forbidden", why)
			return false
		}
	}
	return true
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReason(reason), Code: int32(code), Message: message,
	})
}
