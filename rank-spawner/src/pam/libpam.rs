//! libpam, loaded at run time, so that neither a build nor a node without PAM service needs the library.
//!
//! Functions, constants and structures are from Linux-PAM's `security/_pam_types.h` and `security/pam_appl.h`; the application's duties
//! are from `pam(3)` and `pam_conv(3)`.
#![expect(unsafe_code, reason = "a C library is called, and calls back")]

use std::error::Error as _;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use nix::libc;

use super::Refused;
use super::answer::variable;

const SUCCESS: c_int = 0;
const BUFFER_ERROR: c_int = 5;
const CONVERSATION_ERROR: c_int = 19;
const ERROR_MESSAGE: c_int = 3;
const TEXT_INFORMATION: c_int = 4;
const ESTABLISH_CREDENTIALS: c_int = 2;
const DELETE_CREDENTIALS: c_int = 4;

/// Limit on the messages in one call (`PAM_MAX_NUM_MSG`) and on all stored messages; limit on the characters stored of one message.
const MESSAGES_MAX: usize = 32;
const TEXT_MAX: usize = 512;

/// `pam_handle_t`, which is opaque.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

/// `struct pam_message`.
#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

/// `struct pam_response`.
#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

/// `struct pam_conv`.
#[repr(C)]
struct Conversation {
    converse: unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int,
    said: *mut c_void,
}

type Start = unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *mut *mut Handle) -> c_int;
type Step = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(*mut Handle, c_int) -> *const c_char;
type Environment = unsafe extern "C" fn(*mut Handle) -> *mut *mut c_char;

/// The loaded library.
pub(super) struct LibPam {
    start: Start,
    end: Step,
    account: Step,
    credentials: Step,
    open: Step,
    close: Step,
    error_text: ErrorText,
    environment: Environment,
    /// Keeps the functions in memory.
    _library: Library,
}

impl LibPam {
    const NAME: &str = "libpam.so.0";

    /// Loads the library; the error names the missing part.
    pub(super) fn load() -> Result<Self, String> {
        let failed = |error: libloading::Error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("cannot use {}: {reason}; install it (libpam0g, pam), or leave pam_service out", Self::NAME)
        };
        // SAFETY: libpam's initialisers have no preconditions. The library is found in the system's library directories, which belong
        // to root.
        let library = unsafe { Library::new(Self::NAME) }.map_err(failed)?;
        // SAFETY (of each of the eight): the types are the prototypes in pam_appl.h, and `library` lives as long as the pointers.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: as above.
                *unsafe { library.get($name) }.map_err(failed)?
            };
        }
        Ok(Self {
            start: function!(b"pam_start\0"),
            end: function!(b"pam_end\0"),
            account: function!(b"pam_acct_mgmt\0"),
            credentials: function!(b"pam_setcred\0"),
            open: function!(b"pam_open_session\0"),
            close: function!(b"pam_close_session\0"),
            error_text: function!(b"pam_strerror\0"),
            environment: function!(b"pam_getenvlist\0"),
            _library: library,
        })
    }
}

/// Messages of modules, without control characters. Modules may send them on any thread.
#[derive(Default)]
struct ModuleMessages(Mutex<Vec<String>>);

impl ModuleMessages {
    fn add(&self, text: &CStr) {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() < MESSAGES_MAX {
            texts.push(cleaned(&text.to_string_lossy()));
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Text of one line that is safe for a terminal: spaces replace control characters and characters that change the writing direction.
fn cleaned(text: &str) -> String {
    let is_obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.trim().chars().map(|c| if is_obeyed(c) { ' ' } else { c }).take(TEXT_MAX).collect()
}

/// PAM transaction (`pam_start` to `pam_end`). Drop closes the session, deletes the credentials and ends the transaction.
pub(super) struct Transaction<'library> {
    library: &'library LibPam,
    handle: *mut Handle,
    /// Boxed, because the library stores its address.
    said: Box<ModuleMessages>,
    has_credentials: bool,
    is_open: bool,
    last: c_int,
}

impl<'library> Transaction<'library> {
    pub(super) fn start(library: &'library LibPam, service: &str, user: &str) -> Result<Self, Refused> {
        let step = || "start".to_owned();
        let strings = CString::new(service).and_then(|service| Ok((service, CString::new(user)?)));
        let (service, user) =
            strings.map_err(|error| Refused { step: step(), text: error.to_string(), ..Refused::default() })?;
        let said = Box::<ModuleMessages>::default();
        let conversation = Conversation { converse, said: ptr::from_ref(&*said).cast_mut().cast() };
        let mut handle = ptr::null_mut();
        // SAFETY: the strings and the conversation live during the call, which copies them. `handle` is valid for the result. `said` is
        // boxed and lives as long as the handle.
        let code =
            unsafe { (library.start)(service.as_ptr(), user.as_ptr(), &raw const conversation, &raw mut handle) };
        let started = Self { library, handle, said, has_credentials: false, is_open: false, last: code };
        started.refusal_of(code, "start").map_or(Ok(started), Err)
    }

    pub(super) fn check_account(&mut self) -> Result<(), Refused> {
        self.take_step(self.library.account, 0, "account management")
    }

    pub(super) fn establish_credentials(&mut self) -> Result<(), Refused> {
        self.take_step(self.library.credentials, ESTABLISH_CREDENTIALS, "establishing credentials")?;
        self.has_credentials = true;
        Ok(())
    }

    pub(super) fn open_session(&mut self) -> Result<(), Refused> {
        self.take_step(self.library.open, 0, "opening the session")?;
        self.is_open = true;
        Ok(())
    }

    /// Closes the session and deletes the credentials, if there are any; returns the last error.
    pub(super) fn close(&mut self) -> Result<(), Refused> {
        let mut closed = Ok(());
        if std::mem::take(&mut self.is_open) {
            closed = self.take_step(self.library.close, 0, "closing the session");
        }
        if std::mem::take(&mut self.has_credentials) {
            let deleted = self.take_step(self.library.credentials, DELETE_CREDENTIALS, "deleting credentials");
            closed = closed.and(deleted);
        }
        closed
    }

    /// Messages of modules since the previous call.
    pub(super) fn said(&self) -> Vec<String> {
        self.said.take()
    }

    /// Variables set by modules.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        // SAFETY: the handle belongs to a transaction that has not ended.
        let list = unsafe { (self.library.environment)(self.handle) };
        let mut variables = Vec::new();
        if list.is_null() {
            return variables;
        }
        let mut next = list;
        // SAFETY: the list is an array of strings that ends with a null pointer. The caller must free the array and each string once,
        // and no other pointer to them exists afterwards.
        unsafe {
            while !(*next).is_null() {
                variables.extend(variable(CStr::from_ptr(*next).to_bytes()));
                libc::free((*next).cast());
                next = next.add(1);
            }
            libc::free(list.cast());
        }
        variables
    }

    fn take_step(&mut self, step: Step, flags: c_int, name: &str) -> Result<(), Refused> {
        // SAFETY: the handle belongs to a transaction that has not ended, and the function takes flags.
        self.last = unsafe { step(self.handle, flags) };
        self.refusal_of(self.last, name).map_or(Ok(()), Err)
    }

    fn refusal_of(&self, code: c_int, step: &str) -> Option<Refused> {
        if code == SUCCESS {
            return None;
        }
        // SAFETY: the function uses only the code, and returns a string that is never freed.
        let text = unsafe { (self.library.error_text)(self.handle, code) };
        let text = match text.is_null() {
            true => format!("error {code}"),
            // SAFETY: the pointer is not null, so it is a string, as above.
            false => cleaned(&unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        };
        Some(Refused { step: step.to_owned(), text, said: self.said.take() })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // A caller that needs the result has called `close` before.
        let _ = self.close();
        if !self.handle.is_null() {
            // SAFETY: the transaction was started and ends here; its handle is not used afterwards.
            unsafe { (self.library.end)(self.handle, self.last) };
        }
    }
}

/// Conversation function: stores messages and fails on prompts, as no user is there to answer.
///
/// # Safety
/// As in `pam_conv(3)`: `messages` points to `count` pointers to messages, and `answers` to the place for the address of the answers.
/// `said` is the pointer that was passed to `pam_start`.
unsafe extern "C" fn converse(
    count: c_int,
    messages: *mut *const Message,
    answers: *mut *mut Response,
    said: *mut c_void,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    if !(1..=MESSAGES_MAX).contains(&count) || messages.is_null() || answers.is_null() || said.is_null() {
        return CONVERSATION_ERROR;
    }
    // SAFETY: the pointer is the `ModuleMessages` of a transaction, which lives as long as its handle, and is only shared.
    let said = unsafe { &*said.cast::<ModuleMessages>() };
    for index in 0..count {
        // SAFETY: the caller guarantees `count` messages; Linux-PAM passes an array of pointers.
        let Some(message) = (unsafe { (*messages.add(index)).as_ref() }) else { return CONVERSATION_ERROR };
        match message.style {
            ERROR_MESSAGE | TEXT_INFORMATION if !message.text.is_null() => {
                // SAFETY: the text of a message is a string that lives during the call.
                said.add(unsafe { CStr::from_ptr(message.text) });
            }
            _ => return CONVERSATION_ERROR,
        }
    }
    // SAFETY: the arguments are numbers. The caller frees the memory; all zero is an answer without text.
    let memory = unsafe { libc::calloc(count, size_of::<Response>()) };
    if memory.is_null() {
        return BUFFER_ERROR;
    }
    // SAFETY: the caller guarantees that the place is valid.
    unsafe { *answers = memory.cast() };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converse_about(messages: &[(c_int, &CStr)], said: &ModuleMessages) -> c_int {
        let messages: Vec<Message> =
            messages.iter().map(|(style, text)| Message { style: *style, text: text.as_ptr() }).collect();
        let mut pointers: Vec<*const Message> = messages.iter().map(ptr::from_ref).collect();
        let mut answers = ptr::null_mut();
        let count = c_int::try_from(pointers.len()).unwrap();
        // SAFETY: `count` messages, a valid place for the answers, and a valid `ModuleMessages`.
        let code =
            unsafe { converse(count, pointers.as_mut_ptr(), &raw mut answers, ptr::from_ref(said).cast_mut().cast()) };
        // SAFETY: null, or memory that the function allocated.
        unsafe { libc::free(answers.cast()) };
        code
    }

    #[test]
    fn texts_are_taken_without_what_a_terminal_obeys_and_prompts_fail() {
        const PROMPT: c_int = 1;
        let said = ModuleMessages::default();
        let texts = [(ERROR_MESSAGE, c"no\x1b[31m way\n"), (TEXT_INFORMATION, c"until\nnoon")];
        assert_eq!(converse_about(&texts, &said), SUCCESS);
        assert_eq!(said.take(), ["no [31m way", "until noon"]);
        assert_eq!(converse_about(&[(PROMPT, c"Password: ")], &said), CONVERSATION_ERROR);
        assert_eq!(converse_about(&[], &said), CONVERSATION_ERROR);
        assert_eq!(converse_about(&[(TEXT_INFORMATION, c"x"); MESSAGES_MAX + 1], &said), CONVERSATION_ERROR);
        assert_eq!(said.take(), [""; 0]);
    }

    #[test]
    fn a_service_that_denies_is_an_answer_in_words_of_pam() {
        let library = LibPam::load().unwrap_or_else(|text| panic!("{text}"));
        // A service without a file uses `other`. The test checks only that the transaction starts.
        let transaction = Transaction::start(&library, "lattice-test-without-file", "root");
        let transaction = transaction.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert_eq!(transaction.environment(), []);
        let refused = transaction.refusal_of(6, "account management").unwrap();
        assert_eq!((refused.step.as_str(), refused.text.as_str()), ("account management", "Permission denied"));
    }
}
