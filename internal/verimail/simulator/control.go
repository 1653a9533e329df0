package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// route is the fate of any request.
func (s *Simulator) route(r request) fate {
	allow := ""
	switch r.path {
	case verifyPath:
		return s.decide(r)
	case statsPath, livezPath:
		allow = "GET"
	case modePath:
		allow = "GET, POST"
	case resetPath:
		allow = "POST"
	default:
		return controlError(http.StatusNotFound, errors.New("no such path"))
	}
	switch {
	case r.err != nil:
		return fate{ending: breaks}
	case len(r.body) > maxBody:
		return controlError(http.StatusRequestEntityTooLarge, errors.New("request body too large"))
	case !strings.Contains(allow, r.method) || r.method == "":
		f := controlError(http.StatusMethodNotAllowed, fmt.Errorf("takes %s", allow))
		f.header.Set("Allow", allow)
		return f
	}

	switch {
	case r.path == statsPath:
		return jsonAnswer(http.StatusOK, s.Stats())
	case r.path == resetPath:
		s.Reset()
	case r.method == http.MethodPost:
		if err := s.control(r); err != nil {
			return controlError(http.StatusBadRequest, err)
		}
	}
	return jsonAnswer(http.StatusOK, map[string]string{"mode": s.Mode().String()})
}

func controlError(status int, err error) fate {
	return jsonAnswer(status, map[string]string{"error": err.Error()})
}

// control sets the mode, or the script, that a POST to the mode endpoint asks for.
func (s *Simulator) control(r request) error {
	fields, err := controlFields(r)
	if err != nil {
		return err
	}
	if text, ok := fields["script"]; ok {
		if len(fields) > 1 {
			return errors.New("script: goes alone")
		}
		script, err := ParseScript(text)
		if err != nil {
			return err
		}
		return s.SetScript(script)
	}
	fault, err := ParseFault(fields["mode"]) // a missing mode gets the list of modes too
	if err != nil {
		return err
	}
	m := Mode{Fault: fault}
	seen := make(map[string]bool)
	for name, text := range fields {
		if name == "mode" {
			continue
		}
		if seen[optionName(name)] {
			return fmt.Errorf("option %s: given twice", optionName(name))
		}
		seen[optionName(name)] = true
		if err := m.option(name, text); err != nil {
			return err
		}
	}
	return s.SetMode(m)
}

// controlFields reads a JSON object of texts and numbers, or a form, or the query. JSON is told by its first byte,
// since curl -d sends it as a form.
func controlFields(r request) (map[string]string, error) {
	fields := make(map[string]string)
	body := bytes.TrimSpace(r.body)
	if bytes.HasPrefix(body, []byte("{")) {
		var object map[string]any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&object); err != nil {
			return nil, errors.New("body is not a JSON object")
		}
		if _, err := d.Token(); err != io.EOF {
			return nil, errors.New("body has more after its JSON object")
		}
		for name, v := range object {
			switch v := v.(type) {
			case string:
				fields[name] = v
			case json.Number:
				fields[name] = v.String()
			default:
				return nil, fmt.Errorf("%s: must be text or a number", name)
			}
		}
		return fields, nil
	}
	for _, source := range []string{r.query, string(body)} {
		values, err := url.ParseQuery(source)
		if err != nil {
			return nil, errors.New("body is neither JSON nor a form")
		}
		for name, v := range values {
			if _, twice := fields[name]; twice || len(v) > 1 {
				return nil, fmt.Errorf("%s: given twice", name)
			}
			fields[name] = v[0]
		}
	}
	return fields, nil
}
