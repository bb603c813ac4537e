/* grpc_load: load on a gRPC server over plaintext HTTP/2 on the loopback interface.
 *
 *   cc -O2 grpc_load.c -lnghttp2 -o grpc_load
 *   grpc_load --port P --path /package.Service/Method --body FILE [options]
 *
 * FILE holds messages, each with its 5-byte gRPC prefix.
 *
 *   --conns N, --streams N  connections, and calls at a time on each (1, 1)
 *   --secs S, --warm S      length of the measurement, and of the load before it that is not counted (3, 1)
 *   --expect N              messages that a call must be answered with (0: any number)
 *   --rate R                open loop: R new calls a second, however many are open; a call's time runs from
 *                           the moment at which it should have begun
 *   --poisson               open loop: the calls come as a Poisson process of that rate, the same in every run
 *   --authorization TEXT    a header of every call
 *   --bidi                  a call sends the messages of FILE in order, half-closes and begins anew
 *   --window N              bidi: messages of a call that may be unanswered (1)
 *   --silent-first          bidi: the first message has no answer
 *   --units N --field F     bidi: a message is answered when N entries of the repeated field F have come,
 *                           in however many messages
 *   --by-index              bidi: median time for each place of a message in its call
 *
 * Without --bidi the messages of FILE are sent in turn, one a call. The result is one line of JSON. A call is
 * ok when HTTP status, gRPC status and number of messages are; RESOURCE_EXHAUSTED is counted as refused;
 * everything else is an error. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { GRPC_PREFIX = 5, GRPC_RESOURCE_EXHAUSTED = 8, MAX_ERRORS = 1000 };

typedef struct {
  const uint8_t *bytes;
  size_t size;
} Message;

typedef struct {
  double *values;
  size_t count, capacity;
} Samples;

typedef struct {
  int fd;
  nghttp2_session *session;
  bool waits_for_room, dead;
  uint8_t out[1 << 16];
  size_t out_begin, out_end;
} Connection;

/* One call. Messages before `sending` have been given to HTTP/2; `asked` of them may be, by the window. */
typedef struct Call {
  Connection *connection;
  int32_t id;
  size_t sending, asked, offset;
  double *begun; /* when each message began to be sent, by its place in the call */
  size_t answered;
  long units; /* entries of the counted field that have come for the message being answered */
  bool http_ok, half_closed;
  int grpc_status;
  long received;
  uint8_t prefix[GRPC_PREFIX];
  size_t prefix_size, left;
  bool in_message;
  /* Reader of the top level of a protobuf message, which may come in pieces. */
  uint64_t varint, skip;
  int varint_shift, wire_type;
  enum { TAG, LENGTH, VARINT_VALUE, SKIP } state;
  struct Call *next_free;
} Call;

static struct {
  int port, connections, streams, expect, window, units, field;
  double seconds, warm, rate;
  bool poisson;
  bool bidi, silent_first, by_index;
  const char *path, *authorization, *body;
} options = {.connections = 1, .streams = 1, .window = 1, .units = 1, .seconds = 3, .warm = 1, .authorization = ""};

static Message *messages;
static size_t message_count, next_message;
static Connection *connections;
static Call *free_calls;
static char authority[32];
static int epoll_fd;
static double measure_from, measure_until;
static long ok_calls, ok_messages, ok_units, refused, errors, bytes_received, live_calls;
static Samples times, refused_times, *times_by_index;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void die(const char *what) {
  perror(what);
  exit(3);
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (!memory) die("calloc");
  return memory;
}

static bool measuring(double at) { return at >= measure_from && at <= measure_until; }

static void add_sample(Samples *samples, double value) {
  if (samples->count == samples->capacity) {
    samples->capacity = samples->capacity ? samples->capacity * 2 : 1024;
    samples->values = realloc(samples->values, samples->capacity * sizeof(double));
    if (!samples->values) die("realloc");
  }
  samples->values[samples->count++] = value;
}

static int ascending(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double percentile_ms(Samples *samples, double part) {
  if (!samples->count) return 0;
  qsort(samples->values, samples->count, sizeof(double), ascending);
  return samples->values[(size_t)((double)(samples->count - 1) * part)] * 1e3;
}

/* --- sending ---------------------------------------------------------------------------------- */

static ssize_t read_request(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t room, uint32_t *flags,
                            nghttp2_data_source *source, void *data) {
  (void)session, (void)id, (void)data;
  Call *call = source->ptr;
  size_t written = 0;
  while (written < room && call->sending < call->asked) {
    const Message *message = options.bidi ? &messages[call->sending] : &messages[next_message];
    if (!call->offset && options.bidi) call->begun[call->sending] = now();
    size_t part = message->size - call->offset;
    if (part > room - written) part = room - written;
    memcpy(buffer + written, message->bytes + call->offset, part);
    written += part;
    call->offset += part;
    if (call->offset == message->size) {
      call->offset = 0;
      call->sending++;
      if (!options.bidi) next_message = (next_message + 1) % message_count;
    }
  }
  if (call->sending == call->asked && call->half_closed) *flags |= NGHTTP2_DATA_FLAG_EOF;
  else if (!written) return NGHTTP2_ERR_DEFERRED;
  return (ssize_t)written;
}

/* Let as many messages go as the window has room for. The first, silent one takes none. */
static void ask(Call *call) {
  size_t limit = call->answered + (size_t)options.window + (options.silent_first ? 1 : 0);
  call->asked = limit < message_count ? limit : message_count;
}

static void begin_call(Connection *connection, double at) {
  Call *call = free_calls;
  if (call) free_calls = call->next_free;
  else call = allocate(1, sizeof *call);
  double *begun = call->begun ? call->begun : allocate(options.bidi ? message_count : 1, sizeof(double));
  *call = (Call){.connection = connection, .begun = begun, .grpc_status = -1};
  if (options.bidi) {
    ask(call);
  } else {
    call->asked = 1;
    call->half_closed = true;
    begun[0] = at;
  }
#define HEADER(name, value)                                                                   \
  {                                                                                           \
    (uint8_t *)(name), (uint8_t *)(value), strlen(name), strlen(value),                       \
        NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE                          \
  }
  nghttp2_nv headers[] = {
      HEADER(":method", "POST"),           HEADER(":scheme", "http"), HEADER(":path", options.path),
      HEADER(":authority", authority),     HEADER("te", "trailers"),  HEADER("content-type", "application/grpc"),
      HEADER("user-agent", "grpc_load/1"), HEADER("authorization", options.authorization),
  };
  size_t count = sizeof headers / sizeof *headers - (*options.authorization ? 0 : 1);
  nghttp2_data_provider body = {.source.ptr = call, .read_callback = read_request};
  call->id = nghttp2_submit_request(connection->session, NULL, headers, count, &body, call);
  if (call->id < 0) {
    fprintf(stderr, "grpc_load: submit_request: %s\n", nghttp2_strerror(call->id));
    exit(3);
  }
  live_calls++;
}

/* Write what HTTP/2 has to say until the socket is full. */
static void flush(Connection *connection) {
  for (;;) {
    if (connection->out_begin == connection->out_end) {
      connection->out_begin = connection->out_end = 0;
      const uint8_t *bytes;
      ssize_t size;
      /* A frame is 16 KiB and a header; one more must fit. */
      while (connection->out_end + (17 << 10) < sizeof connection->out &&
             (size = nghttp2_session_mem_send(connection->session, &bytes)) > 0) {
        memcpy(connection->out + connection->out_end, bytes, (size_t)size);
        connection->out_end += (size_t)size;
      }
      if (!connection->out_end) break;
    }
    ssize_t written =
        write(connection->fd, connection->out + connection->out_begin, connection->out_end - connection->out_begin);
    if (written < 0) {
      if (errno != EAGAIN) connection->dead = true;
      break;
    }
    connection->out_begin += (size_t)written;
  }
  bool waits = connection->out_begin < connection->out_end;
  if (waits != connection->waits_for_room) {
    struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    connection->waits_for_room = waits;
  }
}

/* --- receiving -------------------------------------------------------------------------------- */

/* A message of a bidi call has been answered. */
static void answered(Call *call) {
  size_t index = call->answered++ + (options.silent_first ? 1 : 0);
  if (index >= message_count) return; /* a last word after the half-close */
  double at = now();
  if (measuring(at)) {
    ok_calls++;
    add_sample(&times, at - call->begun[index]);
    if (options.by_index) add_sample(&times_by_index[index], at - call->begun[index]);
  }
  if (index + 1 == message_count || at >= measure_until) call->half_closed = true;
  else ask(call);
  nghttp2_session_resume_data(call->connection->session, call->id);
}

static void count_unit(Call *call) {
  if (measuring(now())) ok_units++;
  if (++call->units == options.units) {
    call->units = 0;
    answered(call);
  }
}

/* Count the entries of the field in a piece of a message. */
static void count_field(Call *call, const uint8_t *bytes, size_t size) {
  for (size_t i = 0; i < size;) {
    if (call->state == SKIP) {
      size_t part = size - i < call->skip ? size - i : (size_t)call->skip;
      call->skip -= part;
      i += part;
      if (!call->skip) call->state = TAG;
      continue;
    }
    uint8_t byte = bytes[i++];
    call->varint |= (uint64_t)(byte & 0x7f) << call->varint_shift;
    call->varint_shift += 7;
    if (byte & 0x80) continue;
    uint64_t value = call->varint;
    call->varint = 0;
    call->varint_shift = 0;
    if (call->state == VARINT_VALUE) {
      call->state = TAG;
    } else if (call->state == LENGTH) {
      call->skip = value;
      call->state = value ? SKIP : TAG;
    } else {
      if ((int)(value >> 3) == options.field) count_unit(call);
      switch (value & 7) {
        case 0: call->state = VARINT_VALUE; break;
        case 1: call->skip = 8, call->state = SKIP; break;
        case 2: call->state = LENGTH; break;
        case 5: call->skip = 4, call->state = SKIP; break;
        default: fprintf(stderr, "grpc_load: the answer is no protobuf message\n"); exit(3);
      }
    }
  }
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                     const uint8_t *value, size_t value_size, uint8_t flags, void *data) {
  (void)flags, (void)data;
  Call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  if (!call) return 0;
  if (name_size == 7 && !memcmp(name, ":status", 7)) {
    call->http_ok = value_size == 3 && !memcmp(value, "200", 3);
  } else if (name_size == 11 && !memcmp(name, "grpc-status", 11)) {
    char text[8] = {0};
    memcpy(text, value, value_size < 7 ? value_size : 7);
    call->grpc_status = atoi(text);
  } else if (name_size == 12 && !memcmp(name, "grpc-message", 12) && value_size && errors < 3 && !refused) {
    fprintf(stderr, "grpc_load: the server says: %.*s\n", (int)value_size, value);
  }
  return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t size, void *data) {
  (void)flags, (void)data;
  Call *call = nghttp2_session_get_stream_user_data(session, id);
  if (!call) return 0;
  bytes_received += (long)size;
  for (size_t i = 0; i < size;) {
    if (!call->in_message) {
      call->prefix[call->prefix_size++] = bytes[i++];
      if (call->prefix_size < GRPC_PREFIX) continue;
      call->prefix_size = 0;
      call->left = (size_t)call->prefix[1] << 24 | (size_t)call->prefix[2] << 16 | (size_t)call->prefix[3] << 8 |
                   (size_t)call->prefix[4];
      call->in_message = true;
      call->state = TAG;
    }
    size_t part = size - i < call->left ? size - i : call->left;
    if (options.field) count_field(call, bytes + i, part);
    i += part;
    call->left -= part;
    if (call->left) break;
    call->in_message = false;
    call->received++;
    if (measuring(now())) ok_messages++;
    if (options.bidi && !options.field) count_unit(call);
  }
  return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error_code, void *data) {
  (void)data;
  Call *call = nghttp2_session_get_stream_user_data(session, id);
  if (!call) return 0;
  double at = now();
  live_calls--;
  if (call->http_ok && call->grpc_status == GRPC_RESOURCE_EXHAUSTED) {
    if (measuring(at)) {
      refused++;
      add_sample(&refused_times, at - call->begun[0]);
    }
  } else if (error_code || !call->http_ok || call->grpc_status ||
             (options.expect && call->received != options.expect)) {
    errors++;
  } else if (!options.bidi && measuring(at)) {
    ok_calls++;
    add_sample(&times, at - call->begun[0]);
  }
  Connection *connection = call->connection;
  call->next_free = free_calls;
  free_calls = call;
  if (!options.rate && at < measure_until && errors < MAX_ERRORS) begin_call(connection, at);
  return 0;
}

static void receive(Connection *connection) {
  static uint8_t buffer[1 << 17];
  /* A few reads at most, so that one connection does not hold up the others. */
  for (int i = 0; i < 4; i++) {
    ssize_t size = read(connection->fd, buffer, sizeof buffer);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0 || nghttp2_session_mem_recv(connection->session, buffer, (size_t)size) < 0) {
      fprintf(stderr, "grpc_load: a connection was closed\n");
      connection->dead = true;
      return;
    }
    if (size < (ssize_t)sizeof buffer) return;
  }
}

static void open_connection(Connection *connection, nghttp2_session_callbacks *callbacks) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)options.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int yes = 1;
  connection->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connection->fd < 0 || connect(connection->fd, (void *)&address, sizeof address)) die("grpc_load: connect");
  setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(connection->fd, F_SETFL, O_NONBLOCK);
  nghttp2_session_client_new(&connection->session, callbacks, connection);
  /* Windows so large that flow control never holds up a server. */
  nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 4 << 20},
                                       {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
  nghttp2_submit_settings(connection->session, 0, settings, 2);
  nghttp2_session_set_local_window_size(connection->session, 0, 0, 16 << 20);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event);
}

/* --- the run ---------------------------------------------------------------------------------- */

static void read_messages(void) {
  FILE *file = fopen(options.body, "rb");
  if (!file) die(options.body);
  fseek(file, 0, SEEK_END);
  size_t size = (size_t)ftell(file), capacity = 0;
  rewind(file);
  uint8_t *all = allocate(size ? size : 1, 1);
  if (fread(all, 1, size, file) != size) die(options.body);
  fclose(file);
  for (size_t at = 0; at + GRPC_PREFIX <= size;) {
    size_t length = (size_t)all[at + 1] << 24 | (size_t)all[at + 2] << 16 | (size_t)all[at + 3] << 8 | (size_t)all[at + 4];
    if (message_count == capacity) {
      capacity = capacity ? capacity * 2 : 64;
      messages = realloc(messages, capacity * sizeof *messages);
      if (!messages) die("realloc");
    }
    messages[message_count++] = (Message){all + at, length + GRPC_PREFIX};
    at += length + GRPC_PREFIX;
    if (at > size) message_count = 0;
  }
  if (!message_count) {
    fprintf(stderr, "grpc_load: %s: no whole messages, each with its 5-byte prefix\n", options.body);
    exit(2);
  }
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void report(double cpu) {
  double seconds = options.seconds;
  printf("{\"calls_per_second\": %.1f, \"messages_per_second\": %.1f, \"units_per_second\": %.1f, ",
         (double)ok_calls / seconds, (double)ok_messages / seconds, (double)ok_units / seconds);
  printf("\"ok\": %ld, \"refused_per_second\": %.1f, \"errors\": %ld, \"cpu\": %.3f, ", ok_calls,
         (double)refused / seconds, errors, cpu / seconds);
  printf("\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_ms\": %.4f, \"refused_p50_ms\": %.4f",
         percentile_ms(&times, .5), percentile_ms(&times, .99), percentile_ms(&times, .999), percentile_ms(&times, 1),
         percentile_ms(&refused_times, .5));
  if (options.by_index) {
    printf(", \"p50_ms_by_index\": [");
    for (size_t i = 0; i < message_count; i++)
      printf("%s%.4f", i ? ", " : "", percentile_ms(&times_by_index[i], .5));
    printf("]");
  }
  printf("}\n");
}

static void parse_options(int count, char **words) {
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    if (!strcmp(word, "--bidi")) options.bidi = true;
    else if (!strcmp(word, "--silent-first")) options.silent_first = true;
    else if (!strcmp(word, "--by-index")) options.by_index = true;
    else if (!strcmp(word, "--poisson")) options.poisson = true;
    else {
      const char *value = i + 1 < count ? words[++i] : "";
      if (!strcmp(word, "--port")) options.port = atoi(value);
      else if (!strcmp(word, "--path")) options.path = value;
      else if (!strcmp(word, "--body")) options.body = value;
      else if (!strcmp(word, "--authorization")) options.authorization = value;
      else if (!strcmp(word, "--conns")) options.connections = atoi(value);
      else if (!strcmp(word, "--streams")) options.streams = atoi(value);
      else if (!strcmp(word, "--secs")) options.seconds = atof(value);
      else if (!strcmp(word, "--warm")) options.warm = atof(value);
      else if (!strcmp(word, "--expect")) options.expect = atoi(value);
      else if (!strcmp(word, "--rate")) options.rate = atof(value);
      else if (!strcmp(word, "--window")) options.window = atoi(value);
      else if (!strcmp(word, "--units")) options.units = atoi(value);
      else if (!strcmp(word, "--field")) options.field = atoi(value);
      else {
        fprintf(stderr, "grpc_load: unknown option %s\n", word);
        exit(2);
      }
    }
  }
  if (!options.port || !options.path || !options.body || options.connections < 1 || options.streams < 1 ||
      options.window < 1 || options.units < 1 || options.seconds <= 0) {
    fprintf(stderr, "grpc_load: --port, --path and --body are needed, and numbers above 0\n");
    exit(2);
  }
}

/* Seconds from one call of an open loop to the next. */
static double gap(void) { return options.poisson ? -log(1 - drand48()) / options.rate : 1 / options.rate; }

int main(int count, char **words) {
  parse_options(count, words);
  read_messages();
  snprintf(authority, sizeof authority, "127.0.0.1:%d", options.port);
  epoll_fd = epoll_create1(0);
  connections = allocate((size_t)options.connections, sizeof *connections);
  times_by_index = allocate(message_count, sizeof *times_by_index);
  nghttp2_session_callbacks *callbacks;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
  for (int i = 0; i < options.connections; i++) open_connection(&connections[i], callbacks);

  double started = now();
  measure_from = started + options.warm;
  measure_until = measure_from + options.seconds;
  for (int i = 0; i < options.connections; i++) {
    for (int j = 0; j < options.streams && !options.rate; j++) begin_call(&connections[i], started);
    flush(&connections[i]);
  }
  /* What is open at the end gets a second to finish, so that the server is idle for the next slice. */
  const double patience = 1;
  double cpu_from = 0, cpu_until = 0;
  long scheduled = 0;
  double next_call = started;
  struct epoll_event events[256];
  for (double at = started; at < measure_until + patience && (live_calls || at < measure_until) && errors < MAX_ERRORS;
       at = now()) {
    if (!cpu_from && at >= measure_from) cpu_from = cpu_seconds();
    if (!cpu_until && at >= measure_until) cpu_until = cpu_seconds();
    for (; options.rate && at < measure_until && next_call < at; scheduled++) {
      Connection *connection = &connections[scheduled % options.connections];
      if (!connection->dead) begin_call(connection, next_call);
      next_call += gap();
    }
    if (options.rate)
      for (int i = 0; i < options.connections; i++)
        if (!connections[i].dead) flush(&connections[i]);
    double wait = options.rate && at < measure_until ? fmax(next_call - now(), 0) : 0.1;
    struct timespec until = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
    int ready = epoll_pwait2(epoll_fd, events, 256, &until, NULL);
    for (int i = 0; i < ready; i++) {
      Connection *connection = events[i].data.ptr;
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
      if (!connection->dead) flush(connection);
      if (connection->dead) {
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
        errors += MAX_ERRORS; /* a server that closes connections is not measured further */
      }
    }
  }
  if (!cpu_until) cpu_until = cpu_seconds();
  report(cpu_until - cpu_from);
  return 0;
}
