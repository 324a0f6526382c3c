/* The compiled twin of hot_python.py and of slots.encode_batch: the same names, the same bytes.
 *
 * Optional: hot.py chooses between the two, tests/unit/test_hot.py runs them side by side. Everything here happens under the GIL, and nothing calls back into Python
 * between the first store and the last, so no other thread and no signal handler sees half of it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#define HEADER_BYTES 4096
#define SLOT_BYTES 40
#define SEGMENT 3
#define WRITTEN 4
#define PUBLISHED 5
#define STATE 7
#define SHORT_BYTES 256
#define REMOVED (1U << 24)
#define NO_ROOM (-1L)

static uint32_t crc_table[8][256];
static PyObject *crc32_bulk;

static void
fill_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_table[slice - 1][byte];
            crc_table[slice][byte] = crc >> 8 ^ crc_table[0][crc & 0xFF];
        }
}

/* CRC-32 as zlib computes it, eight bytes at a time. */
static uint32_t
crc32_short(const unsigned char *data, size_t length, uint32_t value)
{
    uint32_t crc = ~value;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = crc_table[7][word & 0xFF] ^ crc_table[6][word >> 8 & 0xFF] ^
              crc_table[5][word >> 16 & 0xFF] ^ crc_table[4][word >> 24 & 0xFF] ^
              crc_table[3][word >> 32 & 0xFF] ^ crc_table[2][word >> 40 & 0xFF] ^
              crc_table[1][word >> 48 & 0xFF] ^ crc_table[0][word >> 56];
        data += 8;
        length -= 8;
    }
    while (length--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 0xFF];
    return ~crc;
}

struct slot {
    int64_t time_us;
    uint64_t attr;
    uint32_t position, length, link, before, after, crc;
};

typedef struct {
    PyObject_HEAD
    Py_buffer mapping, words;
    long long segment, index, position, time_us, first_offset, slots_ready, payloads_ready;
    unsigned int chain, key, seed;
    char publish_at_once;
} Hot;

static int
hot_attach(Hot *self, PyObject *mapping, PyObject *words)
{
    if (PyObject_GetBuffer(words, &self->words, PyBUF_WRITABLE) < 0)
        return -1;
    if (self->words.len < (STATE + 1) * (Py_ssize_t)sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "the live page is too short");
        return -1;
    }
    return mapping == Py_None ? 0 : PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE);
}

static PyObject *
hot_detach(Hot *self, PyObject *Py_UNUSED(none))
{
    if (self->mapping.obj)
        PyBuffer_Release(&self->mapping);
    if (self->words.obj)
        PyBuffer_Release(&self->words);
    Py_RETURN_NONE;
}

static int
hot_init(Hot *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "words", "publish_at_once", NULL};
    PyObject *mapping, *words;
    int publish_at_once;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOp", names, &mapping, &words,
                                     &publish_at_once))
        return -1;
    self->publish_at_once = (char)publish_at_once;
    PyObject *none = hot_detach(self, NULL);
    Py_XDECREF(none);
    if (hot_attach(self, mapping, words) < 0) {
        none = hot_detach(self, NULL);
        Py_XDECREF(none);
        return -1;
    }
    return 0;
}

static void
hot_dealloc(Hot *self)
{
    PyObject *none = hot_detach(self, NULL);
    Py_XDECREF(none);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
checksum(PyObject *object, const char *data, Py_ssize_t length, uint32_t before, uint32_t *after)
{
    if (length < SHORT_BYTES) {
        *after = crc32_short((const unsigned char *)data, (size_t)length, before);
        return 0;
    }
    PyObject *number = PyObject_CallFunction(crc32_bulk, "OI", object, before);
    if (number == NULL)
        return -1;
    *after = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* Any integer, also one that only has __index__, as struct.pack takes it. */
static unsigned long long
as_unsigned(PyObject *object)
{
    if (PyLong_CheckExact(object))
        return PyLong_AsUnsignedLongLong(object);
    PyObject *number = PyNumber_Index(object);
    if (number == NULL)
        return (unsigned long long)-1;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return value;
}

static PyObject *
closed(void)
{
    PyErr_SetString(PyExc_ValueError, "the segment is closed");
    return NULL;
}

/* store(payload, attr, time_us) -> offset or NO_ROOM */
static PyObject *
hot_store(Hot *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "store takes bytes, attr and time_us");
        return NULL;
    }
    PyObject *payload = args[0];
    struct slot slot = {0};
    slot.attr = as_unsigned(args[1]);
    if (slot.attr == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    slot.time_us = PyLong_AsLongLong(args[2]);
    if (slot.time_us == -1 && PyErr_Occurred())
        return NULL;
    if (self->mapping.obj == NULL || self->words.obj == NULL)
        return closed();
    long long length = PyBytes_GET_SIZE(payload), index = self->index;
    long long end = self->position + length;
    if (end > self->payloads_ready || index >= self->slots_ready)
        return PyLong_FromLong(NO_ROOM);
    uint64_t *words = self->words.buf, next = (uint64_t)(self->first_offset + index + 1);
    if (words[WRITTEN] != next - 1 || words[SEGMENT] != (uint64_t)self->segment || words[STATE])
        return PyLong_FromLong(NO_ROOM); /* Another process was here: catch up first. */
    long long at = HEADER_BYTES + index * SLOT_BYTES;
    if (index < 0 || self->position < 0 || end > self->mapping.len ||
        at + SLOT_BYTES > self->mapping.len) {
        PyErr_SetString(PyExc_ValueError, "outside the segment");
        return NULL;
    }
    if (checksum(payload, PyBytes_AS_STRING(payload), length, self->chain, &slot.after) < 0)
        return NULL;
    if (self->mapping.obj == NULL || self->words.obj == NULL)
        return closed(); /* The checksum may have run Python. */
    /* A clock that steps back must not reorder the log. */
    if (slot.time_us < self->time_us)
        slot.time_us = self->time_us;
    slot.position = (uint32_t)self->position;
    slot.length = (uint32_t)length;
    slot.before = self->chain;
    slot.crc = crc32_short((unsigned char *)&slot, offsetof(struct slot, crc), self->seed) ^ self->key;

    unsigned char *base = self->mapping.buf;
    memcpy(base + self->position, PyBytes_AS_STRING(payload), (size_t)length);
    memcpy(base + at, &slot, SLOT_BYTES);
    self->position = end;
    self->chain = slot.after;
    self->time_us = slot.time_us;
    self->index = index + 1;
    __atomic_store_n(&words[WRITTEN], next, __ATOMIC_RELEASE);
    if (self->publish_at_once)
        /* Before the word that says someone waits is looked at: else a wake-up could be lost. */
        __atomic_store_n(&words[PUBLISHED], next, __ATOMIC_SEQ_CST);
    return PyLong_FromUnsignedLongLong(next - 1);
}

static PyMethodDef hot_methods[] = {
    {"store", (PyCFunction)(void (*)(void))hot_store, METH_FASTCALL,
     "Append one record to space written ahead and return its offset. NO_ROOM if there is not\n"
     "enough of it, or if another process was here meanwhile."},
    {"detach", (PyCFunction)hot_detach, METH_NOARGS, "Let go of the mapping."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef hot_members[] = {
    {"segment", T_LONGLONG, offsetof(Hot, segment), 0, NULL},
    {"index", T_LONGLONG, offsetof(Hot, index), 0, NULL},
    {"position", T_LONGLONG, offsetof(Hot, position), 0, NULL},
    {"chain", T_UINT, offsetof(Hot, chain), 0, NULL},
    {"key", T_UINT, offsetof(Hot, key), 0, NULL},
    {"seed", T_UINT, offsetof(Hot, seed), 0, NULL},
    {"time_us", T_LONGLONG, offsetof(Hot, time_us), 0, NULL},
    {"first_offset", T_LONGLONG, offsetof(Hot, first_offset), 0, NULL},
    {"slots_ready", T_LONGLONG, offsetof(Hot, slots_ready), 0, NULL},
    {"payloads_ready", T_LONGLONG, offsetof(Hot, payloads_ready), 0, NULL},
    {"publish_at_once", T_BOOL, offsetof(Hot, publish_at_once), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject HotType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "segue.log._hot.HotTail",
    .tp_doc = "The state of the active segment and the store of one record.",
    .tp_basicsize = sizeof(Hot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)hot_init,
    .tp_dealloc = (destructor)hot_dealloc,
    .tp_methods = hot_methods,
    .tp_members = hot_members,
};

static int
unsigned_item(PyObject *sequence, Py_ssize_t place, unsigned long long most,
              unsigned long long *number)
{
    *number = as_unsigned(PyTuple_GET_ITEM(sequence, place));
    if (*number == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    if (*number > most) {
        PyErr_SetString(PyExc_OverflowError, "a field of a slot overflows");
        return -1;
    }
    return 0;
}

static int
fill_slots(struct slot *slots, PyObject *lengths, PyObject *attrs, long long time_us,
           unsigned long long position)
{
    Py_ssize_t count = PyTuple_GET_SIZE(lengths);
    unsigned long long number;
    for (Py_ssize_t place = 0; place < count; place++) {
        struct slot *slot = &slots[place];
        if (unsigned_item(lengths, place, UINT32_MAX, &number) < 0)
            return -1;
        if (position + number > UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a batch ends beyond its segment");
            return -1;
        }
        slot->position = (uint32_t)position;
        slot->length = (uint32_t)number;
        slot->time_us = time_us;
        slot->link = (uint32_t)(count - 1 - place);
        position += number;
        if (attrs != NULL) {
            if (unsigned_item(attrs, place, UINT64_MAX, &number) < 0)
                return -1;
            slot->attr = number;
        }
    }
    return 0;
}

/* encode_batch(lengths, attrs, *, time_us, position, before, after, key, seed) -> bytes */
static PyObject *
encode_batch(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lengths", "attrs", "time_us", "position", "before", "after",
                            "key", "seed", NULL};
    PyObject *lengths_arg, *attrs_arg, *lengths, *attrs = NULL, *table = NULL;
    long long time_us;
    unsigned long long position;
    unsigned int before, after, key, seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO$LKIIII", names, &lengths_arg, &attrs_arg,
                                     &time_us, &position, &before, &after, &key, &seed))
        return NULL;
    /* Tuples of our own: converting an item may run Python, which may change the caller's. */
    lengths = PySequence_Tuple(lengths_arg);
    if (lengths == NULL)
        return NULL;
    if (attrs_arg != Py_None) {
        attrs = PySequence_Tuple(attrs_arg);
        if (attrs == NULL)
            goto done;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(lengths);
    if (count < 1 || (attrs != NULL && PyTuple_GET_SIZE(attrs) != count)) {
        PyErr_SetString(PyExc_ValueError, "a batch has records, and as many attrs");
        goto done;
    }
    table = PyBytes_FromStringAndSize(NULL, count * SLOT_BYTES);
    if (table == NULL)
        goto done;
    struct slot *slots = (struct slot *)PyBytes_AS_STRING(table);
    memset(slots, 0, (size_t)count * SLOT_BYTES);
    if (fill_slots(slots, lengths, attrs, time_us, position) < 0) {
        Py_CLEAR(table);
        goto done;
    }
    struct slot *last = &slots[count - 1];
    last->before = before;
    last->after = after;
    PyObject *body = PyMemoryView_FromMemory((char *)slots, count * SLOT_BYTES - 4, PyBUF_READ);
    uint32_t crc;
    if (body == NULL || checksum(body, (char *)slots, count * SLOT_BYTES - 4, seed, &crc) < 0)
        Py_CLEAR(table);
    else
        last->crc = crc ^ key;
    Py_XDECREF(body);
done:
    Py_DECREF(lengths);
    Py_XDECREF(attrs);
    return table;
}

/* measure_batch(payloads) -> the length of each, or None unless all are bytes */
static PyObject *
measure_batch(PyObject *Py_UNUSED(module), PyObject *payloads)
{
    if (!PyList_CheckExact(payloads)) {
        PyErr_SetString(PyExc_TypeError, "measure_batch takes a list");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(payloads);
    PyObject *lengths = PyList_New(count);
    if (lengths == NULL)
        return NULL;
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *payload = PyList_GET_ITEM(payloads, place);
        PyObject *length =
            PyBytes_CheckExact(payload) ? PyLong_FromSsize_t(PyBytes_GET_SIZE(payload)) : NULL;
        if (length == NULL) {
            Py_DECREF(lengths);
            if (PyErr_Occurred())
                return NULL;
            Py_RETURN_NONE;
        }
        PyList_SET_ITEM(lengths, place, length);
    }
    return lengths;
}

/* A record as the named tuple it is. Takes the reference to each field, also when it fails. */
static PyObject *
make_record(PyTypeObject *type, PyObject *offset, PyObject *time_us, PyObject *attr,
            PyObject *payload)
{
    PyObject *fields[4] = {offset, time_us, attr, payload};
    PyObject *record = offset && time_us && attr && payload ? type->tp_alloc(type, 4) : NULL;
    for (int place = 0; place < 4; place++)
        if (record != NULL)
            PyTuple_SET_ITEM(record, place, fields[place]);
        else
            Py_XDECREF(fields[place]);
    return record;
}

/* read_records(record_type, segment, index, stop, first_offset) -> list of records */
static PyObject *
read_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    PyObject *segment;
    Py_ssize_t index, stop;
    unsigned long long first_offset;
    if (!PyArg_ParseTuple(args, "O!OnnK", &PyType_Type, &type, &segment, &index, &stop,
                          &first_offset))
        return NULL;
    if (!PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "a record is a tuple");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *records = NULL;
    if (index < 0 || stop < index || stop > (view.len - HEADER_BYTES) / SLOT_BYTES) {
        PyErr_SetString(PyExc_ValueError, "outside the segment");
        goto done;
    }
    records = PyList_New(0);
    const char *base = view.buf;
    for (Py_ssize_t place = index; records != NULL && place < stop; place++) {
        struct slot slot;
        memcpy(&slot, base + HEADER_BYTES + place * SLOT_BYTES, SLOT_BYTES);
        if (slot.link & REMOVED)
            continue;
        if ((unsigned long long)slot.position + slot.length > (unsigned long long)view.len) {
            PyErr_SetString(PyExc_ValueError, "a payload lies outside the segment");
            Py_CLEAR(records);
            break;
        }
        PyObject *record = make_record(
            type, PyLong_FromUnsignedLongLong(first_offset + (unsigned long long)place),
            PyLong_FromLongLong(slot.time_us), PyLong_FromUnsignedLongLong(slot.attr),
            PyBytes_FromStringAndSize(base + slot.position, slot.length));
        if (record == NULL || PyList_Append(records, record) < 0)
            Py_CLEAR(records);
        Py_XDECREF(record);
    }
done:
    PyBuffer_Release(&view);
    return records;
}

static PyMethodDef module_methods[] = {
    {"read_records", read_records, METH_VARARGS,
     "Return records `index` to `stop` of a mapped segment; removed ones are left out."},
    {"measure_batch", measure_batch, METH_O,
     "Return the length of each payload, or None unless all are bytes."},
    {"encode_batch", (PyCFunction)(void (*)(void))encode_batch, METH_VARARGS | METH_KEYWORDS,
     "Return the slots of one batch whose payloads lie side by side from `position`."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segue.log._hot",
    .m_doc = "The compiled twin of segue.log.hot.",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC
PyInit__hot(void)
{
    if (sizeof(struct slot) != SLOT_BYTES) {
        PyErr_SetString(PyExc_ImportError, "a slot is not 40 bytes with this compiler");
        return NULL;
    }
    fill_crc_table();
    PyObject *checksums = PyImport_ImportModule("segue.log.checksum");
    if (checksums == NULL)
        return NULL;
    crc32_bulk = PyObject_GetAttrString(checksums, "crc32_bulk");
    Py_DECREF(checksums);
    if (crc32_bulk == NULL || PyType_Ready(&HotType) < 0)
        return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self == NULL)
        return NULL;
    if (PyModule_AddObjectRef(self, "HotTail", (PyObject *)&HotType) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
